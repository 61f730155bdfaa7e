"""EAGLE-3 drafting: a head continues the verifier's features, as a chain or as a dynamic tree.

EAGLE-3 (arXiv 2503.01840); trees as in EAGLE-2 (``drafters.draft_tree``). The head's cache keeps
only pairs of a verifier's feature with the token behind it; keys of drafted positions, whose
features are the head's own, are overwritten at the next call. Pairs are consumed when a draft is
asked for, so steps that copy or draft nothing cost nothing here (SwitchSD's lazy propagation).

Legend: R rows, H hidden, K kv heads, Q query heads, D head_dim, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

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
from drafters.eagle3_head import Eagle3Head, grouped_attention
from drafters.head_cache import HeadCache
from engine.records import Draft, SequenceView

MAX_CHUNK = 512
"""Pairs consumed in one pass: bounds the memory of a long prompt."""


class ChainDrafting(Protocol):
    """Reads new pairs and drafts a greedy chain: in torch, or in one native call."""

    def draft(
        self,
        cache: HeadCache,
        newest_1H: Tensor,
        features_RH: Tensor,
        token_ids: Sequence[int],
        *,
        start: int,
        num_drafts: int,
        min_probability: float,
    ) -> tuple[int, ...]:
        """Cache R pairs at positions from ``start`` on, then a chain of at most ``num_drafts``.

        ``newest_1H`` is read where there are no new pairs and written where there are: the layer's
        output for the newest pair. The chain ends early where its probability falls below
        ``min_probability``.
        """
        ...


@dataclass(slots=True)
class _Context:
    """What the head has read of one request."""

    cache: HeadCache
    newest: Tensor
    """[1, H]: the layer's output for the newest pair."""
    num_pairs: int = 0
    """Pair t holds the feature of position t and token t + 1."""
    newest_token: int = -1


class Eagle3Drafter:
    """Implements ``engine.interfaces.NeuralDrafter`` with one EAGLE-3 head."""

    def __init__(
        self, head: Eagle3Head, shape: ChainShape | TreeShape, chain: ChainDrafting | None = None
    ) -> None:
        self._head, self._shape = head, shape
        self._chain = chain or TorchChain(head)
        self._contexts: dict[str, _Context] = {}

    def forget(self, request_id: str) -> None:
        """Drop a request's cache; an unknown id is ignored."""
        self._contexts.pop(request_id, None)

    def draft(self, view: SequenceView) -> Draft:
        """Candidates of at most ``view.max_draft_tokens`` tokens behind the pending one."""
        if view.max_draft_tokens < 1:
            return Draft()
        self._head.reserve_positions(len(view.token_ids) + view.max_draft_tokens)
        if view.request_id not in self._contexts:
            self._contexts[view.request_id] = self._new_context()
        context = self._contexts[view.request_id]
        with torch.inference_mode():
            if isinstance(self._shape, TreeShape):
                self._advance(context, view)
                shape = replace(self._shape, depth=min(self._shape.depth, view.max_draft_tokens))
                candidates = _TreeRun(self._head, context, shape).candidates()
            else:
                num_drafts = min(self._shape.num_tokens, view.max_draft_tokens)
                chain = self._advance(context, view, num_drafts, self._shape.min_probability)
                candidates = (chain,) if chain else ()
        return Draft(source="neural", candidates=candidates) if candidates else Draft()

    def _new_context(self) -> _Context:
        layer, dtype = self._head.config.layer, self._head.dtype
        return _Context(
            cache=HeadCache(layer.num_kv_heads, layer.head_dim, dtype),
            newest=torch.empty(1, layer.hidden_size, dtype=dtype),
        )

    def _advance(
        self,
        context: _Context,
        view: SequenceView,
        num_drafts: int = 0,
        min_probability: float = 0.0,
    ) -> tuple[int, ...]:
        """Read all pairs of verified features and tokens that are not in the cache yet, draft."""
        length, features = len(view.token_ids) - 1, view.features
        assert features is not None, "the verifier's pass projects features for this drafter"
        assert len(features) == length, "one feature for every position before the pending token"
        known = context.num_pairs
        assert known <= length, "a request's tokens only grow"
        assert not known or view.token_ids[known] == context.newest_token, (
            "a request's tokens only grow"
        )
        context.newest_token = view.token_ids[length]
        while True:
            start = context.num_pairs
            end = context.num_pairs = min(start + MAX_CHUNK, length)
            drafted = self._chain.draft(
                context.cache,
                context.newest,
                features[start:end].to(self._head.dtype),
                view.token_ids[start + 1 : end + 1],
                start=start,
                num_drafts=num_drafts if end == length else 0,
                min_probability=min_probability,
            )
            if end == length:
                return drafted


class TorchChain:
    """Implements ``ChainDrafting`` on any device and in any precision."""

    def __init__(self, head: Eagle3Head) -> None:
        self._head = head

    def draft(
        self,
        cache: HeadCache,
        newest_1H: Tensor,
        features_RH: Tensor,
        token_ids: Sequence[int],
        *,
        start: int,
        num_drafts: int,
        min_probability: float,
    ) -> tuple[int, ...]:
        """As the protocol says."""
        if token_ids:
            newest_1H.copy_(self._run(cache, features_RH, token_ids, start))
        head, hidden_1H = self._head, newest_1H
        position = start + len(token_ids)
        drafted: list[int] = []
        probability = 1.0
        while len(drafted) < num_drafts:
            if drafted:
                features_1H = head.next_features(hidden_1H)
                hidden_1H = self._run(cache, features_1H, drafted[-1:], position)
                position += 1
            logits_1V = head.logits(hidden_1H)
            if min_probability > 0.0:
                probability *= float(logits_1V.softmax(-1).amax())
            if probability < min_probability:
                break
            drafted.append(int(head.vocabulary.to_target(logits_1V.argmax(-1))))
        return tuple(drafted)

    def _run(
        self, cache: HeadCache, features_RH: Tensor, token_ids: Sequence[int], start: int
    ) -> Tensor:
        """[1, H]: cache the pairs of consecutive positions, output of the last of them.

        The others' keys and values do not depend on attention, so no mask is needed.
        """

        def attend(query_RQD: Tensor, key_RKD: Tensor, value_RKD: Tensor) -> Tensor:
            keys, values = cache.write(start, key_RKD, value_RKD)
            return grouped_attention(query_RQD[-1:], keys, values)

        positions = torch.arange(start, start + len(token_ids))
        output_1H: Tensor = self._head(
            features_RH, torch.tensor(token_ids), positions, attend, answered=slice(-1, None)
        )
        return output_1H


class _TreeRun:
    """One tree: its rows lie in the cache behind the consumed pairs, in the order they were run."""

    def __init__(self, head: Eagle3Head, context: _Context, shape: TreeShape) -> None:
        self._head, self._cache, self._shape = head, context.cache, shape
        self._length = context.num_pairs
        self._root_1H = context.newest
        self._hidden_RH = context.newest[:0]
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
