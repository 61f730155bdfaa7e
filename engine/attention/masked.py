"""Reference attention: one SDPA call per sequence with the full boolean mask.

The oracle of the attention tests, and the fallback on devices without a better backend.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.attention.masks import ancestor_mask
from engine.block import Block
from engine.kv_cache import KVCache


class MaskedAttention:
    """Attention of one step's block; built once per step, called once per layer."""

    def __init__(self, block: Block, kv: KVCache) -> None:
        self._block, self._kv = block, kv
        self._mask = ancestor_mask(block.layout).to(kv.keys.device)

    def __call__(self, layer: int, query_RQD: Tensor) -> Tensor:
        """Attend with the keys already in cache and scratch; returns [R, Q, D]."""
        output = torch.zeros_like(query_RQD)
        for rows, first in zip(self._block.sequences, self._block.row_starts, strict=True):
            span = slice(first, first + len(rows.tree.token_ids))
            prefix = rows.committed_length
            keys = self._joined(
                self._kv.keys, self._kv.scratch_keys, layer, rows.slot, prefix, span
            )
            values = self._joined(
                self._kv.values, self._kv.scratch_values, layer, rows.slot, prefix, span
            )
            suffix = self._mask[span, span]
            mask = torch.cat([suffix.new_ones(suffix.shape[0], prefix), suffix], dim=1)
            output[span] = F.scaled_dot_product_attention(
                query_RQD[span].transpose(0, 1)[None],
                keys,
                values,
                attn_mask=mask,
                enable_gqa=True,
            )[0].transpose(0, 1)
        return output

    @staticmethod
    def _joined(
        cache: Tensor, scratch: Tensor, layer: int, slot: int, prefix: int, span: slice
    ) -> Tensor:
        committed = cache[layer, slot, :, :prefix]
        return torch.cat([committed, scratch[layer, span].transpose(0, 1)], dim=1)[None]
