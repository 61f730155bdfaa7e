"""KV cache with a per-step scratch: rejected rows never enter the cache.

A step writes its new keys and values to the scratch; attention reads the committed prefix from the
cache and the new rows from the scratch; after the verdict the accepted path is copied to its
absolute positions. Idea: "scratch, then commit", design 3; peers compact the cache instead (SGLang)
or can only serve chains (vLLM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Commit:
    """Accepted scratch rows of one sequence and the cache position of the first of them."""

    slot: int
    start_length: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCopy:
    """The first ``length`` positions of one slot become those of another."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """Sizes of one rank's cache."""

    layer_indices: tuple[int, ...]
    """Global indices of the layers held here."""
    num_slots: int
    num_kv_heads: int
    head_dim: int
    max_length: int
    """Tokens per sequence."""
    max_rows: int
    """Rows of one step."""


class KVCache:
    """Keys and values of one rank's layers and heads, contiguous per sequence slot."""

    def __init__(
        self, shape: KVShape, *, dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        layers, heads, dim = len(shape.layer_indices), shape.num_kv_heads, shape.head_dim
        cache = (layers, shape.num_slots, heads, shape.max_length, dim)
        scratch = (layers, shape.max_rows, heads, dim)
        self.keys = torch.zeros(cache, dtype=dtype, device=device)
        self.values = torch.zeros(cache, dtype=dtype, device=device)
        self.scratch_keys = torch.zeros(scratch, dtype=dtype, device=device)
        self.scratch_values = torch.zeros(scratch, dtype=dtype, device=device)
        self._local = {layer: position for position, layer in enumerate(shape.layer_indices)}

    def local(self, layer_index: int) -> int:
        """Position of a global layer index among this rank's layers."""
        return self._local[layer_index]

    @property
    def num_slots(self) -> int:
        """Sequences that can be held at once."""
        return self.keys.shape[1]

    @property
    def max_length(self) -> int:
        """Tokens per sequence."""
        return self.keys.shape[3]

    @property
    def max_rows(self) -> int:
        """Rows of one step."""
        return self.scratch_keys.shape[1]

    def write(self, layer_index: int, key_RKD: Tensor, value_RKD: Tensor) -> None:
        """Put a layer's new rows into the scratch."""
        layer, count = self._local[layer_index], key_RKD.shape[0]
        self.scratch_keys[layer, :count] = key_RKD
        self.scratch_values[layer, :count] = value_RKD

    def commit(self, commits: Sequence[Commit]) -> None:
        """Copy accepted scratch rows to their cache positions, all layers at once."""
        for commit in commits:
            first, end = commit.start_length, commit.start_length + len(commit.rows)
            assert end <= self.max_length, "a commit may not pass the end of the cache"
            rows = _as_index(commit.rows)
            for cache, scratch in (
                (self.keys, self.scratch_keys),
                (self.values, self.scratch_values),
            ):
                cache[:, commit.slot, :, first:end] = scratch[:, rows].transpose(1, 2)

    def copy(self, copies: Sequence[KVCopy]) -> None:
        """Copy prefixes between slots, all layers at once."""
        for copy in copies:
            for cache in (self.keys, self.values):
                cache[:, copy.target, :, : copy.length] = cache[:, copy.source, :, : copy.length]


def _as_index(rows: tuple[int, ...]) -> slice | list[int]:
    """Consecutive rows (chains, the best candidate) as a slice: a view, not a gather."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return list(rows)
