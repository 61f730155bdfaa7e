"""The ancestor mask of a block as a dense boolean matrix, for backends that take one."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.block import RowLayout


def ancestor_mask(layout: RowLayout) -> Tensor:
    """[R, R] bool: entry (r, s) says whether row r sees new row s (itself and its ancestors)."""
    offsets = layout.path_offsets.long()
    num_rows = offsets.numel() - 1
    mask = torch.zeros(num_rows, num_rows, dtype=torch.bool)
    rows = torch.repeat_interleave(torch.arange(num_rows), offsets.diff())
    mask[rows, layout.path_rows.long()] = True
    return mask
