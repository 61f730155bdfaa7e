"""Which rows of a draft are worth verifying: expected tokens per expected time.

Expected acceptance comes from running counts per source and match length: how often a first draft
token is accepted, and how often a further one is given that its parent was. Copies are either wrong
at once or right for long, so one rate for both would misjudge them. The time comes from the
measured step-time table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.candidates import TokenTree, keep_nodes
from engine.records import Draft
from engine.step_time import StepTimeTable

_PRIOR_ACCEPTED, _PRIOR_TRIED = 3.0, 5.0
_DECAY = 0.99
"""Weight the counts keep at each observation: the last hundred drafts or so matter."""


@dataclass(slots=True)
class _Rate:
    """Decayed acceptance counts."""

    accepted: float = _PRIOR_ACCEPTED
    tried: float = _PRIOR_TRIED

    def observe(self, *, accepted: int, tried: int) -> None:
        self.accepted = self.accepted * _DECAY + accepted
        self.tried = self.tried * _DECAY + tried

    def relax(self) -> None:
        """Move a little towards the prior, so that an unused source gets another chance."""
        self.accepted = self.accepted * _DECAY + _PRIOR_ACCEPTED * (1 - _DECAY)
        self.tried = self.tried * _DECAY + _PRIOR_TRIED * (1 - _DECAY)

    @property
    def value(self) -> float:
        return self.accepted / self.tried


@dataclass(slots=True)
class _Survival:
    """Acceptance of a first draft token, and of a further one after an accepted parent."""

    first: _Rate = field(default_factory=_Rate)
    further: _Rate = field(default_factory=_Rate)

    def observe(self, *, accepted: int, deepest: int) -> None:
        self.first.observe(accepted=min(accepted, 1), tried=1)
        if accepted:
            tried = accepted - 1 + (accepted < deepest)
            self.further.observe(accepted=accepted - 1, tried=tried)


class AcceptanceEstimate:
    """Running acceptance rates by source and match length."""

    def __init__(self) -> None:
        self._survival: dict[tuple[str, int], _Survival] = {}

    def _of(self, draft: Draft) -> _Survival:
        return self._survival.setdefault((draft.source, draft.match_length), _Survival())

    def observe(self, draft: Draft, *, accepted: int, deepest: int) -> None:
        """Learn from one verified draft whose longest path had ``deepest`` draft tokens."""
        self._of(draft).observe(accepted=accepted, deepest=deepest)

    def relax(self, draft: Draft) -> None:
        """Note that a draft of this kind was not worth a single row."""
        self._of(draft).first.relax()

    def chain_probabilities(self, draft: Draft, depth: int) -> list[float]:
        """Estimated probability that each token of a chain of ``depth`` is accepted."""
        survival = self._of(draft)
        first, further = survival.first.value, survival.further.value
        return [first * further**index for index in range(depth)]

    def node_probabilities(self, draft: Draft, tree: TokenTree) -> list[float]:
        """Estimated probability that each node is accepted; the pending token's is 1.

        The k-th child of a node is only reached when the k-1 before it were wrong.
        """
        survival = self._of(draft)
        rates = (survival.first.value, survival.further.value)
        probabilities, siblings = [1.0], [0] * len(tree.parents)
        for parent in tree.parents[1:]:
            rate = rates[parent > 0]
            probabilities.append(probabilities[parent] * rate * (1 - rate) ** siblings[parent])
            siblings[parent] += 1
        return probabilities


def given_probabilities(draft: Draft, tree: TokenTree) -> list[float]:
    """The draft's own ratings, by node; where candidates share a node, the highest counts.

    A node is reached through its parent, so that no rating is above the parent's.
    """
    children = tree.children()
    found = [1.0] + [0.0] * (len(tree.token_ids) - 1)
    for candidate, ratings in zip(draft.candidates, draft.probabilities, strict=True):
        node = 0
        for token, rating in zip(candidate, ratings, strict=True):
            child = children.get((node, token))
            if child is None:
                break
            node, found[child] = child, max(found[child], rating)
    for node, parent in enumerate(tree.parents[1:], start=1):
        found[node] = min(found[node], found[parent])
    return found


@dataclass(frozen=True, slots=True)
class RatedTree:
    """A draft merged into a tree, and how likely each of its nodes is to be accepted."""

    tree: TokenTree
    probabilities: Sequence[float]


def worthwhile_rows(
    drafts: Sequence[RatedTree], table: StepTimeTable, *, other_rows: int = 0
) -> list[TokenTree]:
    """The subtrees of one step's drafts that together bring the most expected tokens per time.

    Every draft keeps its pending token's row at least; ``other_rows`` (prompt chunks) run in any
    case. A lone stream gets a wide try, a full batch narrow ones or none.
    """
    base = other_rows + len(drafts)
    order = _likeliest_first(drafts)
    best_count, tokens = 0, float(len(drafts))
    best = tokens / table.at(base)
    for count, (probability, _, _) in enumerate(order, start=1):
        tokens -= probability  # sorted by its negative
        rate = tokens / table.at(base + count)
        if rate > best:
            best_count, best = count, rate
    kept: list[list[int]] = [[0] for _ in drafts]
    for _, index, node in order[:best_count]:
        kept[index].append(node)
    return [keep_nodes(draft.tree, kept[index]) for index, draft in enumerate(drafts)]


def _likeliest_first(drafts: Sequence[RatedTree]) -> list[tuple[float, int, int]]:
    """(negative probability, draft, node) of all drafted nodes; parents before their children."""
    return sorted(
        (-draft.probabilities[node], index, node)
        for index, draft in enumerate(drafts)
        for node in range(1, len(draft.probabilities))
    )
