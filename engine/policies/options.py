"""What a step can be spent on, by expected tokens per expected time; and the drafts that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.candidates import num_equal
from engine.outlook import Outlook
from engine.rated_copies import RatedCopies
from engine.records import Draft, Source


class Option(NamedTuple):
    """A way to spend the step; the largest rate is the best."""

    rate: float
    """Expected tokens per millisecond."""
    source: Source
    lookahead: int = 0
    """Neural tokens that are asked for."""


def best_option(copies: RatedCopies, outlook: Outlook, lookahead: int) -> Option:
    """The best of: plain; copying, so many rows; drafting, so many tokens; both in one trie.

    At most ``lookahead`` tokens are drafted; 0: there is no drafter.
    """
    options = [Option(outlook.rate(), "plain"), *_copy_options(copies, outlook)]
    if lookahead:
        drafts = list(enumerate(outlook.lookahead.expected(lookahead), start=1))
        neural = [
            Option(outlook.rate(tokens=tokens, rows=rows, draft_ms=time), "neural", length)
            for length, (tokens, rows, time) in drafts
        ]
        options += [*neural, *_merged_options(copies, outlook, max(neural).lookahead)]
    return max(options)


def _copy_options(copies: RatedCopies, outlook: Outlook) -> list[Option]:
    """One per number of rows."""
    tokens, options = 0.0, []
    for rows, probability in enumerate(copies.probabilities, start=1):
        tokens += probability
        options.append(Option(outlook.rate(tokens=tokens, rows=rows), "copy"))
    return options


def _merged_options(copies: RatedCopies, outlook: Outlook, length: int) -> list[Option]:
    """One per number of copied rows; drafted tokens count as far as no copy is right."""
    drafted, draft_rows, time = outlook.lookahead.expected(length)[-1]
    tokens, options = drafted * (1.0 - copies.first_token), []
    for rows, probability in enumerate(copies.probabilities, start=1):
        tokens += probability
        rate = outlook.rate(tokens=tokens, rows=draft_rows + rows, draft_ms=time)
        options.append(Option(rate, "merged", length))
    return options


def copy_draft(copies: RatedCopies) -> Draft:
    """All rated copies; the planner verifies as many rows as are worth it."""
    return Draft(
        source="copy",
        candidates=copies.candidates,
        probabilities=copies.ratings,
        match_length=copies.match_length,
        reason="worth_most",
    )


def merged_draft(copies: RatedCopies, acceptance: Sequence[float], drafted: Draft) -> Draft:
    """Copies and the drafter's candidates in one draft; copies alone if it answered nothing.

    ``acceptance`` is the share of drafted tokens that are accepted, by their place. A copy that the
    drafter agrees with is likelier than either thought alone; one that it contradicts is not.
    """
    if not drafted.candidates:
        return copy_draft(copies)
    neural, *others = drafted.candidates
    pairs = list(zip(copies.candidates, copies.ratings, strict=True))
    agreed, ratings = max(
        ((num_equal(path, neural), rating) for path, rating in pairs),
        key=lambda found: found[0],
        default=(0, ()),
    )
    doubt = 1.0 - copies.first_token
    own = [
        _either(acceptance[place], ratings[place]) if place < agreed else acceptance[place] * doubt
        for place in range(len(neural))
    ]
    return Draft(
        source="merged",
        candidates=(neural, *others, *copies.candidates),
        probabilities=(
            tuple(own),
            *(
                _behind(acceptance, doubt, own[0], rank, other)
                for rank, other in enumerate(others, 1)
            ),
            *(_raised(rating, own, num_equal(path, neural)) for path, rating in pairs),
        ),
        match_length=copies.match_length,
        reason="worth_most",
    )


def _either(first: float, second: float) -> float:
    """The chance of one of two independent events."""
    return 1.0 - (1.0 - first) * (1.0 - second)


def _behind(
    acceptance: Sequence[float], doubt: float, best: float, rank: int, path: Sequence[int]
) -> tuple[float, ...]:
    """Ratings of a drafter's further candidate: it counts where the ``rank`` before it fail."""
    share = doubt * (1.0 - best) ** rank
    return tuple(acceptance[place] * share for place in range(len(path)))


def _raised(ratings: Sequence[float], own: Sequence[float], agreed: int) -> tuple[float, ...]:
    """Ratings of a copy whose first ``agreed`` tokens the drafter drafted too."""
    if agreed == 0:
        return tuple(ratings)
    factor = own[agreed - 1] / ratings[agreed - 1]
    return (*own[:agreed], *(rating * factor for rating in ratings[agreed:]))
