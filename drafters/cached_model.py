"""A small decoder with its own KV cache: what it has read of a request it need not read again.

Tokens that the verifier accepted without asking this model (copied ones) are read with the next
call, all at once: the lazy propagation of CopySpec (arXiv 2502.08923) and SwitchSD. Drafted tokens
stay in the cache when they turn out accepted; the first one that differs from what the request went
on with, and all behind it, no longer count and are overwritten.

Legend: R rows, H hidden.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from engine.attention.merged import MergedAttention
from engine.block import SequenceRows, build_block
from engine.candidates import TokenTree, chain
from engine.kv_cache import Commit, KVCache, KVShape
from engine.models.decoder import Decoder
from engine.models.layers import Embedding, Linear
from engine.step_context import AttentionBackend, BlockContext

MAX_CHUNK_ROWS = 256
"""Rows of one pass at most: longer contexts are read in chunks, so that the scratch stays small."""


@dataclass(slots=True)
class CachedContext:
    """What the cache holds of one request."""

    slot: int
    token_ids: list[int] = field(default_factory=list)
    """Tokens whose keys and values are in the cache, drafted ones included."""
    num_confirmed: int = 0
    """How many of them are known to be the request's own."""

    @property
    def length(self) -> int:
        """Positions in the cache."""
        return len(self.token_ids)

    def confirm(self) -> None:
        """All tokens in the cache are the request's own."""
        self.num_confirmed = self.length

    def align(self, token_ids: Sequence[int]) -> None:
        """Keep the cached tokens that a request's tokens start with, but never the last of them.

        A request only grows, so confirmed tokens are not compared again; shorter than they are, it
        is another request under the same name, and everything is read anew.
        """
        readable = len(token_ids) - 1
        kept = self.num_confirmed if self.num_confirmed <= readable else 0
        while kept < min(self.length, readable) and self.token_ids[kept] == token_ids[kept]:
            kept += 1
        del self.token_ids[kept:]
        self.num_confirmed = kept


class CachedModel:
    """A whole decoder in one process and the contexts of ``num_slots`` requests.

    One request more evicts the one that was used longest ago: its context is read again when it
    comes back.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        num_slots: int,
        max_length: int,
        attention: AttentionBackend = MergedAttention,
    ) -> None:
        self.model, self._attention = model, attention
        assert isinstance(model.embed, Embedding)
        self._num_readable_ids = model.embed.weight.shape[0]
        shape = KVShape(
            layer_indices=model.layer_indices,
            num_slots=num_slots,
            num_kv_heads=model.config.num_kv_heads,
            head_dim=model.config.head_dim,
            max_length=max_length,
            max_rows=min(MAX_CHUNK_ROWS, max_length),
        )
        self._kv = KVCache(shape, dtype=model.dtype)
        self._contexts: OrderedDict[str, CachedContext] = OrderedDict()
        self._free_slots = list(range(num_slots))[::-1]

    @property
    def max_length(self) -> int:
        """Positions that one request may fill."""
        return self._kv.max_length

    @property
    def max_rows(self) -> int:
        """Rows of one pass."""
        return self._kv.max_rows

    def can_read(self, token_ids: Sequence[int]) -> bool:
        """Whether every id has a row in the embedding: a verifier may know more ids."""
        return all(token < self._num_readable_ids for token in token_ids)

    def knows(self, request_id: str) -> bool:
        """Whether anything of the request is in the cache."""
        return request_id in self._contexts

    def context(self, request_id: str, token_ids: Sequence[int]) -> CachedContext:
        """The request's context, cut to what ``token_ids`` (all its tokens) start with."""
        context = self._contexts.get(request_id)
        if context is None:
            context = self._contexts[request_id] = CachedContext(self._take_slot())
        self._contexts.move_to_end(request_id)
        context.align(token_ids)
        return context

    def forget(self, request_id: str) -> None:
        """Free the request's slot; an unknown id is ignored."""
        context = self._contexts.pop(request_id, None)
        if context is not None:
            self._free_slots.append(context.slot)

    @torch.inference_mode()
    def read(self, context: CachedContext, token_ids: Sequence[int]) -> Tensor:
        """Run tokens behind the context and keep them in it: the last one's state, [1, H]."""
        assert token_ids, "a state is asked of at least one token"
        for start in range(0, len(token_ids), self._kv.max_rows):
            hidden_RH = self._run(context, token_ids[start : start + self._kv.max_rows])
        return hidden_RH[-1:]

    @torch.inference_mode()
    def look(self, context: CachedContext, tree: TokenTree) -> Tensor:
        """Run a tree of tokens behind the context and keep none of them: [R, H], one per node."""
        block = build_block((SequenceRows(context.slot, context.length, tree, wants_all=False),))
        hidden_RH: Tensor = self.model(
            block.token_ids, BlockContext(block, self._kv, self._attention)
        )
        return hidden_RH

    def _run(self, context: CachedContext, token_ids: Sequence[int]) -> Tensor:
        hidden_RH = self.look(context, chain(token_ids))
        rows = tuple(range(len(token_ids)))
        self._kv.commit([Commit(context.slot, context.length, rows)])
        context.token_ids.extend(token_ids)
        return hidden_RH

    def _take_slot(self) -> int:
        if not self._free_slots:
            _, evicted = self._contexts.popitem(last=False)
            return evicted.slot
        return self._free_slots.pop()


def limit_vocabulary(model: Decoder, vocab_size: int) -> None:
    """Cut the head to the ids below ``vocab_size``, so that no other can be drafted; in place.

    The embedding stays whole. To be called before faster kernels take the head's place.
    """
    head = model.head
    assert isinstance(head, Linear)
    if head.out_features <= vocab_size:
        return
    kept = Linear(head.in_features, vocab_size, dtype=model.dtype, device=torch.device("meta"))
    kept.weight = nn.Parameter(head.weight[:vocab_size], requires_grad=False)
    model.head = kept
