"""What an EAGLE-3 head does for one request: read pairs, draft a greedy chain; and it in torch.

A pair is the feature of a position with the token behind it.

Legend: R pairs, H hidden, Q query heads, K kv heads, D head_dim, V draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from drafters.draft_tree import ChainShape
from drafters.eagle3_head import Eagle3Head, grouped_attention
from drafters.head_cache import HeadCache


@dataclass(slots=True)
class HeadState:
    """What the head has read of one request."""

    cache: HeadCache
    newest: Tensor
    """[1, H]: the layer's output for the newest pair; written in place."""
    num_pairs: int = 0
    """Pair t holds the feature of position t and token t + 1."""
    newest_token: int = -1

    @classmethod
    def empty(cls, head: Eagle3Head) -> HeadState:
        """Of a request that the head knows nothing of."""
        layer = head.config.layer
        cache = HeadCache(layer.num_kv_heads, layer.head_dim, head.dtype)
        return cls(cache=cache, newest=torch.empty(1, layer.hidden_size, dtype=head.dtype))

    def advance(self, pairs: Pairs) -> None:
        """Note that pairs were read."""
        self.num_pairs += len(pairs)
        self.newest_token = pairs.token_ids[-1] if pairs.token_ids else self.newest_token


@dataclass(frozen=True, slots=True)
class Pairs:
    """Consecutive pairs behind those that were read."""

    features: Tensor
    """[R, H] in the head's precision."""
    token_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, part: slice) -> Pairs:
        return Pairs(self.features[part], self.token_ids[part])


class ChainDrafting(Protocol):
    """In torch, or in one native call."""

    def read(self, state: HeadState, pairs: Pairs) -> None:
        """Take in new pairs, if there are any."""
        ...

    def draft(self, state: HeadState, pairs: Pairs, shape: ChainShape) -> tuple[int, ...]:
        """Take in new pairs and draft behind the newest one; nothing of the draft is kept."""
        ...


class TorchChain:
    """Implements ``ChainDrafting`` on any device and in any precision."""

    def __init__(self, head: Eagle3Head) -> None:
        self._head = head

    def read(self, state: HeadState, pairs: Pairs) -> None:
        """As the protocol says."""
        if pairs:
            state.newest.copy_(self._run(state, pairs, state.num_pairs))
            state.advance(pairs)

    def draft(self, state: HeadState, pairs: Pairs, shape: ChainShape) -> tuple[int, ...]:
        """As the protocol says."""
        self.read(state, pairs)
        head, hidden_1H = self._head, state.newest
        drafted: list[int] = []
        probability = 1.0
        while len(drafted) < shape.num_tokens:
            if drafted:
                pair = Pairs(head.next_features(hidden_1H), (drafted[-1],))
                hidden_1H = self._run(state, pair, state.num_pairs + len(drafted) - 1)
            logits_1V = head.logits(hidden_1H)
            if shape.min_probability > 0.0:
                probability *= float(logits_1V.softmax(-1).amax())
            if probability < shape.min_probability:
                break
            drafted.append(int(head.vocabulary.to_target(logits_1V.argmax(-1))))
        return tuple(drafted)

    def _run(self, state: HeadState, pairs: Pairs, start: int) -> Tensor:
        """[1, H]: cache pairs at positions from ``start`` on, output of the last of them.

        The others' keys and values do not depend on attention, so no mask is needed.
        """

        def attend(query_RQD: Tensor, key_RKD: Tensor, value_RKD: Tensor) -> Tensor:
            keys, values = state.cache.write(start, key_RKD, value_RKD)
            return grouped_attention(query_RQD[-1:], keys, values)

        positions = torch.arange(start, start + len(pairs))
        output_1H: Tensor = self._head(
            pairs.features,
            torch.tensor(pairs.token_ids),
            positions,
            attend,
            answered=slice(-1, None),
        )
        return output_1H
