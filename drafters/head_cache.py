"""The cache of an EAGLE-3 head for one request.

Legend: R rows, K kv heads, D head_dim, S positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST_POSITIONS = 256


class HeadCache:
    """Keys and values by position; grows."""

    def __init__(self, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self._keys = torch.empty(num_kv_heads, 0, head_dim, dtype=dtype)
        self._values = torch.empty(num_kv_heads, 0, head_dim, dtype=dtype)

    def reserve(self, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [K, S, D] with room for ``length`` positions; written ones are kept."""
        held = self._keys.shape[1]
        if length > held:
            room = max(2 * held, length, _FIRST_POSITIONS)
            self._keys, self._values = (_grown(one, room) for one in (self._keys, self._values))
        return self._keys, self._values

    def write(self, start: int, key_RKD: Tensor, value_RKD: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows at positions from ``start`` on; returns keys and values up to them [K, S, D]."""
        end = start + len(key_RKD)
        keys, values = self.reserve(end)
        keys[:, start:end] = key_RKD.transpose(0, 1)
        values[:, start:end] = value_RKD.transpose(0, 1)
        return keys[:, :end], values[:, :end]


def _grown(buffer_KSD: Tensor, room: int) -> Tensor:
    num_heads, held, dim = buffer_KSD.shape
    grown = buffer_KSD.new_empty(num_heads, room, dim)
    grown[:, :held] = buffer_KSD
    return grown
