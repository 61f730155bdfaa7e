"""Weights in the kernels' layout (see gemm.h), all of a model in one piece of memory.

One piece, in the order of execution, on huge pages where the system grants them: a decoding step
reads every weight once, so it is bound by how well memory streams.

Legend: O output features, I input features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.native.library import KernelLibrary

_ALIGNMENT = 2 << 20
"""Bytes in a huge page."""
_LINE = 64
"""Bytes in a cache line."""


class WeightArena:
    """Hands out consecutive memory for packed weights; lives as long as any tensor from it."""

    def __init__(self, num_bytes: int, library: KernelLibrary) -> None:
        memory = torch.empty(num_bytes + 2 * _ALIGNMENT, dtype=torch.uint8)
        start = -memory.data_ptr() % _ALIGNMENT
        size = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        self._free = memory[start : start + size]
        library.advise_huge_pages(self._free.data_ptr(), size)

    def place(self, packed: Tensor) -> Tensor:
        """A copy of ``packed`` in the arena."""
        num_bytes = packed.numel() * packed.element_size()
        placed = self._free[:num_bytes].view(packed.dtype).view(packed.shape)
        self._free = self._free[-(-num_bytes // _LINE) * _LINE :]
        return placed.copy_(packed)


def packed_bytes(shape: tuple[int, int], element_size: int, block_columns: int) -> int:
    """Arena bytes of a packed [O, I] weight."""
    per_word = 4 // element_size
    outputs, words = -(-shape[0] // block_columns) * block_columns, -(-shape[1] // per_word)
    return -(-outputs * words * 4 // _LINE) * _LINE


def pack_weight(weight_OI: Tensor, block_columns: int) -> Tensor:
    """[O, I] -> [O / columns, I / per word, columns, per word], zero-padded."""
    per_word = 4 // weight_OI.element_size()
    outputs, inputs = weight_OI.shape
    padding = (0, -inputs % per_word, 0, -outputs % block_columns)
    padded = functional.pad(weight_OI.detach(), padding)
    return padded.view(-1, block_columns, padded.shape[1] // per_word, per_word).transpose(1, 2)


def pack_gate_up(weight_OI: Tensor, block_columns: int) -> Tensor:
    """Rows [gate | up] -> their blocks alternating: one thread gets both factors of a product."""
    gate, up = (pack_weight(half, block_columns) for half in weight_OI.chunk(2))
    return torch.stack([gate, up], dim=1)


def unpack_weight(packed: Tensor, shape: tuple[int, int]) -> Tensor:
    """Inverse of ``pack_weight``: the [O, I] weight."""
    blocks, words, columns, per_word = packed.shape
    padded = packed.transpose(1, 2).reshape(blocks * columns, words * per_word)
    return padded[: shape[0], : shape[1]]
