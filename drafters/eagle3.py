"""EAGLE-3 drafting: a head continues the verifier's features, as a chain or as a dynamic tree.

EAGLE-3 (arXiv 2503.01840); trees as in EAGLE-2 (``drafters.draft_tree``). The head's cache keeps
only pairs of a verifier's feature with the token behind it; keys of drafted positions, whose
features are the head's own, are overwritten at the next call. Pairs are consumed when a draft is
asked for, so steps that copy or draft nothing cost nothing here (SwitchSD's lazy propagation).

Legend: R rows, H hidden, K kv heads, Q query heads, D head_dim, S keys.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from drafters.draft_tree import (
    ChainShape,
    Children,
    Level,
    TreeShape,
    grow_tree,
    path_mask,
    top_children,
)
from drafters.eagle3_chain import ChainDrafting, HeadState, Pairs, TorchChain
from drafters.eagle3_head import Eagle3Head, grouped_attention
from engine.records import Draft, SequenceView

MAX_CHUNK = 512
"""Pairs consumed in one pass: bounds the memory of a long prompt."""


class Eagle3Drafter:
    """Implements ``engine.interfaces.NeuralDrafter`` with one EAGLE-3 head."""

    def __init__(
        self, head: Eagle3Head, shape: ChainShape | TreeShape, chain: ChainDrafting | None = None
    ) -> None:
        self._head, self._shape = head, shape
        self._chain = chain or TorchChain(head)
        self._states: dict[str, HeadState] = {}

    def forget(self, request_id: str) -> None:
        """Drop a request's cache; an unknown id is ignored."""
        self._states.pop(request_id, None)

    def draft(self, view: SequenceView) -> Draft:
        """Candidates of at most ``view.max_draft_tokens`` tokens behind the pending one."""
        if view.max_draft_tokens < 1:
            return Draft()
        self._head.reserve_positions(len(view.token_ids) + view.max_draft_tokens)
        if view.request_id not in self._states:
            self._states[view.request_id] = HeadState.empty(self._head)
        state = self._states[view.request_id]
        with torch.inference_mode():
            candidates = self._candidates(state, view)
        return Draft(source="neural", candidates=candidates) if candidates else Draft()

    def _candidates(self, state: HeadState, view: SequenceView) -> tuple[tuple[int, ...], ...]:
        pairs, limit = self._new_pairs(state, view), view.max_draft_tokens
        while len(pairs) > MAX_CHUNK:
            self._chain.read(state, pairs[:MAX_CHUNK])
            pairs = pairs[MAX_CHUNK:]
        if isinstance(self._shape, TreeShape):
            self._chain.read(state, pairs)
            shape = replace(self._shape, depth=min(self._shape.depth, limit))
            return _TreeRun(self._head, state, shape).candidates()
        chain_shape = replace(self._shape, num_tokens=min(self._shape.num_tokens, limit))
        chain = self._chain.draft(state, pairs, chain_shape)
        return (chain,) if chain else ()

    def _new_pairs(self, state: HeadState, view: SequenceView) -> Pairs:
        """All pairs of verified features and tokens that are not in the cache yet."""
        features, known = view.features, state.num_pairs
        assert features is not None, "the verifier's pass projects features for this drafter"
        assert len(features) == len(view.token_ids) - 1, "one feature before each further token"
        assert known <= len(features), "a request's tokens only grow"
        assert known == 0 or view.token_ids[known] == state.newest_token, (
            "a request's tokens only grow"
        )
        return Pairs(features[known:].to(self._head.dtype), tuple(view.token_ids[known + 1 :]))


class _TreeRun:
    """One tree: its rows lie in the cache behind the consumed pairs, in the order they were run."""

    def __init__(self, head: Eagle3Head, state: HeadState, shape: TreeShape) -> None:
        self._head, self._cache, self._shape = head, state.cache, shape
        self._length = state.num_pairs
        self._root_1H = state.newest
        self._hidden_RH = state.newest[:0]
        self._children = partial(
            top_children, count=shape.top_k, to_token=head.vocabulary.to_target
        )

    def candidates(self) -> tuple[tuple[int, ...], ...]:
        """Grow the tree."""
        roots = self._children(self._head.logits(self._root_1H))
        return grow_tree(self._shape, roots, self._expand)

    def _expand(self, level: Level) -> Children:
        first_row, depth = len(self._hidden_RH), len(level.paths[0])
        start = self._length + first_row
        mask = path_mask(level, first_row=first_row, dtype=self._head.dtype)
        bias = torch.cat((mask.new_zeros(len(mask), self._length), mask), dim=1)

        def attend(query_RQD: Tensor, key_RKD: Tensor, value_RKD: Tensor) -> Tensor:
            keys, values = self._cache.write(start, key_RKD, value_RKD)
            return grouped_attention(query_RQD, keys, values, bias)

        # Siblings share a position, which is not the place of their keys in the cache.
        positions = torch.full((len(mask),), self._length + depth - 1)
        token_ids = torch.tensor(level.token_ids)
        hidden_RH: Tensor = self._head(self._features(level), token_ids, positions, attend)
        self._hidden_RH = torch.cat((self._hidden_RH, hidden_RH))
        return self._children(self._head.logits(hidden_RH))

    def _features(self, level: Level) -> Tensor:
        """Each node's feature is its parent's output."""
        if len(level.paths[0]) == 1:
            parents_RH = self._root_1H.expand(len(level.paths), -1)
        else:
            parents_RH = self._hidden_RH[[path[-2] for path in level.paths]]
        return self._head.next_features(parents_RH)
