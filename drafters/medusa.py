"""Medusa drafting: the likeliest tokens of all heads, combined in a tree of a fixed shape.

Medusa (arXiv 2401.10774). All heads read the state of row NA, the row whose logits emitted the
pending token; nothing is kept of a request. The tree is verified exactly, as every draft here; the
paper's typical acceptance would change what the verifier says, so it is not built.
"""

from __future__ import annotations

from functools import cache

import torch

from drafters.medusa_heads import MedusaHeads
from drafters.static_tree import StaticTree
from engine.records import Draft, SequenceView

_Path = tuple[tuple[int, ...], tuple[float, ...]]
"""Ranks from the root to a leaf, and how likely each prefix of them is to be accepted."""


class MedusaDrafter:
    """Implements ``engine.interfaces.NeuralDrafter`` with a set of Medusa heads."""

    def __init__(self, heads: MedusaHeads, tree: StaticTree) -> None:
        """Raises ``ValueError`` for a tree that is deeper or wider than the heads allow."""
        if tree.depth > heads.config.num_heads or tree.num_ranks > heads.config.draft_vocab_size:
            raise ValueError(
                f"a tree of depth {tree.depth} over {tree.num_ranks} tokens per head does not fit "
                f"{heads.config.num_heads} Medusa heads over {heads.config.draft_vocab_size} tokens"
            )
        self._heads, self._tree = heads, tree
        self._paths = cache(self._find_paths)

    def forget(self, request_id: str) -> None:
        """There is nothing to forget."""

    def draft(self, view: SequenceView) -> Draft:
        """The tree, cut to ``view.max_draft_tokens`` levels, with its nodes' probabilities."""
        if view.max_draft_tokens < 1:
            return Draft()
        assert view.features is not None, "the verifier's pass reads its last state for this"
        with torch.inference_mode():
            logits_K1D = self._heads.logits(view.features[-1:].to(self._heads.dtype))
            top_KN = logits_K1D[:, 0].topk(self._tree.num_ranks, dim=-1).indices
        tokens: list[list[int]] = self._heads.vocabulary.to_target(top_KN).tolist()
        paths = self._paths(view.max_draft_tokens)
        return Draft(
            source="neural",
            candidates=tuple(
                tuple(tokens[head][rank] for head, rank in enumerate(ranks)) for ranks, _ in paths
            ),
            probabilities=tuple(rating for _, rating in paths if rating),
        )

    def _find_paths(self, max_depth: int) -> tuple[_Path, ...]:
        return tuple((path, self._rating(path)) for path in self._tree.paths(max_depth))

    def _rating(self, path: tuple[int, ...]) -> tuple[float, ...]:
        if not self._tree.accuracies:
            return ()
        return tuple(self._tree.probability(path[: end + 1]) for end in range(len(path)))
