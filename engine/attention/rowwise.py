"""Row-invariant attention from torch operators alone: every row over its own path.

A row's keys are gathered in path order, so the call for a row is the very call that plain decoding
would make at that position, wherever the boundary between cache and scratch falls. Slow (one call
per row and layer): the fallback for ``exactness="strict"`` when the native kernels cannot be built.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.block import Block
from engine.kv_cache import KVCache


class RowwiseAttention:
    """Attention of one step's block; built once per step, called once per layer."""

    def __init__(self, block: Block, kv: KVCache) -> None:
        self._kv = kv
        layout = block.layout
        self._slots = layout.row_slot.tolist()
        self._prefixes = layout.row_prefix.tolist()
        lengths = layout.path_offsets.diff().tolist()
        self._paths = torch.split(layout.path_rows.long(), lengths)

    def __call__(self, layer: int, query_RQD: Tensor) -> Tensor:
        """Attend with the keys already in cache and scratch; returns [R, Q, D]."""
        kv, output = self._kv, torch.empty_like(query_RQD)
        for row, path in enumerate(self._paths):
            prefix = (layer, self._slots[row], slice(None), slice(0, self._prefixes[row]))
            keys = torch.cat([kv.keys[prefix], kv.scratch_keys[layer, path].transpose(0, 1)], dim=1)
            values = torch.cat(
                [kv.values[prefix], kv.scratch_values[layer, path].transpose(0, 1)], dim=1
            )
            output[row] = F.scaled_dot_product_attention(
                query_RQD[row][None, :, None], keys[None], values[None], enable_gqa=True
            )[0, :, 0]
        return output
