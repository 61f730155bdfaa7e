"""EAGLE-3 drafting: a head continues the verifier's features, as a chain or as a dynamic tree.

EAGLE-3 (arXiv 2503.01840); trees as in EAGLE-2 (``drafters.draft_tree``). The head's cache keeps
only pairs of a verifier's feature with the token behind it; keys of drafted positions, whose
features are the head's own, are overwritten at the next call. Pairs are consumed when a draft is
asked for, so steps that copy or draft nothing cost nothing here (SwitchSD's lazy propagation).

Legend: R rows, H hidden, K kv heads, Q query heads, D head_dim, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
from drafters.eagle3_head import Eagle3Head, grouped_attention
from engine.records import Draft, SequenceView

MAX_CHUNK = 512
"""Pairs consumed in one pass: bounds the memory of a long prompt."""


class HeadCache:
    """Keys and values of one request, by position; grows."""

    def __init__(self) -> None:
        self._keys = torch.empty(0, 0, 0)
        self._values = torch.empty(0, 0, 0)

    def write(self, start: int, key_RKD: Tensor, value_RKD: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows at positions from ``start`` on; returns keys and values up to them [K, S, D]."""
        end = start + len(key_RKD)
        if end > self._keys.shape[1]:
            self._keys = _grown(self._keys, start, end, key_RKD)
            self._values = _grown(self._values, start, end, value_RKD)
        self._keys[:, start:end] = key_RKD.transpose(0, 1)
        self._values[:, start:end] = value_RKD.transpose(0, 1)
        return self._keys[:, :end], self._values[:, :end]


@dataclass(slots=True)
class _Context:
    """What the head has read of one request."""

    cache: HeadCache = field(default_factory=HeadCache)
    token_ids: list[int] = field(default_factory=list)
    """Tokens of the consumed pairs: pair t holds token t + 1."""
    newest: Tensor | None = None
    """[1, H]: the layer's output for the newest pair."""


class Eagle3Drafter:
    """Implements ``engine.interfaces.NeuralDrafter`` with one EAGLE-3 head."""

    def __init__(self, head: Eagle3Head, shape: ChainShape | TreeShape) -> None:
        self._head, self._shape = head, shape
        self._contexts: dict[str, _Context] = {}

    def forget(self, request_id: str) -> None:
        """Drop a request's cache; an unknown id is ignored."""
        self._contexts.pop(request_id, None)

    def draft(self, view: SequenceView) -> Draft:
        """Candidates of at most ``view.max_draft_tokens`` tokens behind the pending one."""
        if view.max_draft_tokens < 1:
            return Draft()
        self._head.reserve_positions(len(view.token_ids) + view.max_draft_tokens)
        with torch.inference_mode():
            context = self._contexts.setdefault(view.request_id, _Context())
            self._consume(context, view)
            candidates = self._candidates(context, view.max_draft_tokens)
        return Draft(source="neural", candidates=candidates) if candidates else Draft()

    def _consume(self, context: _Context, view: SequenceView) -> None:
        """Read all pairs of verified features and tokens that are not in the cache yet."""
        known, length = len(context.token_ids), len(view.token_ids) - 1
        features = view.features
        assert features is not None, "the verifier's pass projects features for this drafter"
        assert len(features) == length, "one feature for every position before the pending token"
        assert list(view.token_ids[1 : known + 1]) == context.token_ids, (
            "a request's tokens only grow"
        )
        for start in range(known, length, MAX_CHUNK):
            end = min(start + MAX_CHUNK, length)
            token_ids = list(view.token_ids[start + 1 : end + 1])
            rows_RH = features[start:end].to(self._head.dtype)
            context.newest = self._run(context, rows_RH, token_ids, start)
            context.token_ids += token_ids

    def _candidates(self, context: _Context, max_tokens: int) -> tuple[tuple[int, ...], ...]:
        if isinstance(self._shape, ChainShape):
            chain = self._chain(context, self._shape, min(self._shape.num_tokens, max_tokens))
            return (chain,) if chain else ()
        shape = replace(self._shape, depth=min(self._shape.depth, max_tokens))
        return _TreeRun(self._head, context, shape).candidates()

    def _chain(self, context: _Context, shape: ChainShape, num_tokens: int) -> tuple[int, ...]:
        head, hidden_1H = self._head, context.newest
        assert hidden_1H is not None
        tokens: list[int] = []
        probability = 1.0
        while True:
            if shape.min_probability > 0.0:
                probability *= float(head.logits(hidden_1H).softmax(-1).amax())
            if probability < shape.min_probability:
                return tuple(tokens)
            tokens.append(int(head.likeliest(hidden_1H)))
            if len(tokens) == num_tokens:
                return tuple(tokens)
            position = len(context.token_ids) + len(tokens) - 1
            features_1H = head.next_features(hidden_1H)
            hidden_1H = self._run(context, features_1H, tokens[-1:], position)

    def _run(
        self, context: _Context, features_RH: Tensor, token_ids: list[int], start: int
    ) -> Tensor:
        """[1, H]: cache the pairs of consecutive positions, output of the last of them.

        The others' keys and values do not depend on attention, so no mask is needed.
        """

        def attend(query_RQD: Tensor, key_RKD: Tensor, value_RKD: Tensor) -> Tensor:
            keys, values = context.cache.write(start, key_RKD, value_RKD)
            return grouped_attention(query_RQD[-1:], keys, values)

        positions = torch.arange(start, start + len(token_ids))
        output_1H: Tensor = self._head(features_RH, torch.tensor(token_ids), positions, attend)
        return output_1H


class _TreeRun:
    """One tree: its rows lie in the cache behind the consumed pairs, in the order they were run."""

    def __init__(self, head: Eagle3Head, context: _Context, shape: TreeShape) -> None:
        assert context.newest is not None
        self._head, self._cache, self._shape = head, context.cache, shape
        self._length = len(context.token_ids)
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


def _grown(buffer: Tensor, kept: int, needed: int, rows_RKD: Tensor) -> Tensor:
    """A larger buffer with the first ``kept`` positions of the old one."""
    _, num_heads, dim = rows_RKD.shape
    grown = rows_RKD.new_empty(num_heads, max(2 * needed, 256), dim)
    if kept:
        grown[:, :kept] = buffer[:, :kept]
    return grown
