"""Where the newest tokens occurred before, and how far back each occurrence agrees.

The copy index answers with continuations of one match length. A gate wants to know more of each
occurrence: the length of its match. Appending a token costs a constant; a look-up visits at most
``_VISITS`` occurrences of each gram, the newest ones, and of longer grams too, because a common
short gram has more recent occurrences than the one that matters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from engine.copy_source import CopyMatch

MAX_MATCH_LENGTH = 16
"""Longer matches count as this long: nothing more is learned from them."""
_VISITS = {1: 32, 2: 48, 5: 16}
"""Occurrences that are looked at, by the tokens that must agree."""


class MatchIndex:
    """Append-only index of the earlier occurrences of grams of a few lengths."""

    def __init__(self, match_length: int) -> None:
        """``match_length``: tokens that must agree at least (κ)."""
        visits = {max(length, match_length): visits for length, visits in _VISITS.items()}
        self._visits = dict(sorted(visits.items(), reverse=True))
        self._starts: dict[int, defaultdict[tuple[int, ...], list[int]]] = {
            length: defaultdict(list) for length in self._visits
        }

    def grow(self, token_ids: Sequence[int]) -> None:
        """Note the newest token: the grams before it can be continued."""
        start = len(token_ids) - 1
        for length, starts in self._starts.items():
            if start >= length:
                starts[tuple(token_ids[start - length : start])].append(start)

    def matches(self, token_ids: Sequence[int], max_matches: int) -> tuple[CopyMatch, ...]:
        """Occurrences of the context's end, longest match first, then newest first."""
        found = [
            CopyMatch(_match_length(token_ids, start, length), start)
            for start, length in self._newest(token_ids)
        ]
        return tuple(sorted(found, reverse=True)[:max_matches])

    def _newest(self, token_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """(start, tokens that agree at least), every occurrence once."""
        seen: set[int] = set()
        for length, visits in self._visits.items():
            starts = self._starts[length].get(tuple(token_ids[-length:]), ())
            for start in reversed(starts[-visits:]):
                if start not in seen:
                    seen.add(start)
                    yield start, length


def _match_length(token_ids: Sequence[int], start: int, known: int) -> int:
    """Tokens before ``start`` that equal the context's last ones; ``known`` of them do."""
    end, length = len(token_ids), known
    limit = min(MAX_MATCH_LENGTH, start)
    while length < limit and token_ids[start - 1 - length] == token_ids[end - 1 - length]:
        length += 1
    return length
