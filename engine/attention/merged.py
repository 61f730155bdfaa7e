"""Split attention: unmasked over the prefix, ancestor-masked over new rows, LSE-merged.

This is the structure of SGLang's tree verification (two flash calls and a merge) on the CPU flash
operator, which also returns its log-sum-exp. Traps of that operator: it dies on zero keys, so an
empty prefix is skipped; a fully masked row would report lse 0, so every row sees itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.masks import ancestor_mask
from engine.attention.merge import merge_attention_states
from engine.block import Block, SequenceRows
from engine.kv_cache import KVCache

_FLASH_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001


class MergedAttention:
    """Attention of one step's block; built once per step, called once per layer."""

    def __init__(self, block: Block, kv: KVCache) -> None:
        self._block, self._kv = block, kv
        visible = ancestor_mask(block.layout)
        self._bias = torch.zeros(visible.shape, dtype=kv.keys.dtype).masked_fill_(
            ~visible, float("-inf")
        )

    def __call__(self, layer: int, query_RQD: Tensor) -> Tensor:
        """Attend with the keys already in cache and scratch; returns [R, Q, D]."""
        output = torch.zeros_like(query_RQD)
        for rows, first in zip(self._block.sequences, self._block.row_starts, strict=True):
            span = slice(first, first + len(rows.tree.token_ids))
            output[span] = self._sequence(layer, query_RQD[span], rows, span)
        return output

    def _sequence(self, layer: int, query_RQD: Tensor, rows: SequenceRows, span: slice) -> Tensor:
        kv, query = self._kv, query_RQD.transpose(0, 1)[None]
        suffix_output, suffix_lse = _flash(
            query,
            kv.scratch_keys[layer, span].transpose(0, 1),
            kv.scratch_values[layer, span].transpose(0, 1),
            self._bias[span, span],
        )
        if rows.committed_length == 0:
            return suffix_output[0].transpose(0, 1)
        prefix = slice(0, rows.committed_length)
        prefix_output, prefix_lse = _flash(
            query,
            kv.keys[layer, rows.slot, :, prefix],
            kv.values[layer, rows.slot, :, prefix],
            None,
        )
        merged = merge_attention_states(prefix_output, prefix_lse, suffix_output, suffix_lse)
        return merged[0].transpose(0, 1)


def _flash(
    query_1QRD: Tensor, key_KSD: Tensor, value_KSD: Tensor, bias_RS: Tensor | None
) -> tuple[Tensor, Tensor]:
    """CPU flash attention with its natural-log LSE [1, Q, R]; KV heads are expanded as views."""
    num_heads, (num_kv_heads, length, dim) = query_1QRD.shape[1], key_KSD.shape
    group = num_heads // num_kv_heads

    def expand(states: Tensor) -> Tensor:
        grouped = states[:, None].expand(num_kv_heads, group, length, dim)
        return grouped.reshape(1, num_heads, length, dim)

    output, lse = _FLASH_CPU(
        query_1QRD, expand(key_KSD), expand(value_KSD), dropout_p=0.0, attn_mask=bias_RS
    )
    return output, lse
