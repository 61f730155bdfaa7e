"""RASD (retrieval-augmented speculative decoding, 2025): retrieved branches in the draft tree.

A re-implementation, because no code was released: what followed earlier occurrences of the last
tokens is retrieved (the request's own context takes the place of a datastore), kept where its first
token is one that the drafter considers, merged into the drafter's tree along common prefixes, and
the whole is cut to the size of the drafter's tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from engine.candidates import leaf_paths, merge_candidates
from engine.policies.stateless import Stateless
from engine.records import Choice, CopyIndexShape, Draft, NeuralWish, SequenceView

Candidates = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rasd(Stateless):
    """The drafter is asked at every step."""

    num_speculative_tokens: int
    max_nodes: int
    """Nodes of the fused tree, the pending token's included."""
    match_length: int = 3
    max_candidates: int = 3
    max_tokens: int = 10
    name: str = "rasd"

    @property
    def copy_index(self) -> CopyIndexShape:
        """One match length."""
        return CopyIndexShape(match_lengths=(self.match_length,), max_tokens=self.max_tokens)

    def choose(self, view: SequenceView) -> Choice:
        """The wish for a tree; what was retrieved is fused into the answer."""
        retrieved = view.copies.continuations(
            match_length=self.match_length,
            max_candidates=self.max_candidates,
            max_tokens=self.max_tokens,
        )
        return NeuralWish(
            max_tokens=self.num_speculative_tokens,
            finish=partial(fused, retrieved, max_nodes=self.max_nodes),
        )


def fused(retrieved: Candidates, drafted: Draft, *, max_nodes: int) -> Draft:
    """The drafter's candidates with the retrieved ones that it gives a chance, in one tree."""
    considered = {candidate[0] for candidate in drafted.candidates}
    kept = [candidate for candidate in retrieved if candidate[0] in considered]
    if not kept:
        return drafted
    # Alternating, so that the cut leaves the best of both.
    tree = merge_candidates(0, _alternating(drafted.candidates, kept), max_nodes)
    # A drafter's own ratings speak of its candidates only.
    return replace(drafted, source="merged", candidates=leaf_paths(tree), probabilities=())


def _alternating(
    first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    longest = max(len(first), len(second))
    return [side[rank] for rank in range(longest) for side in (first, second) if rank < len(side)]
