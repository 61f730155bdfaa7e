"""A step context for whole sequences side by side: plain causal attention, nothing cached.

Legend: B sequences of one length, R = B x length rows, Q query heads, K kv heads, D head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.block import RowLayout
from engine.interfaces import Site
from engine.kv_cache import KVCache


class WholeSequences:
    """Implements ``engine.interfaces.StepContext``; keeps the newest state of every point."""

    def __init__(self, batch: int, length: int) -> None:
        self.positions = torch.arange(length).repeat(batch)
        self.observed: dict[tuple[int, Site], Tensor] = {}
        self._batch = batch

    @property
    def layout(self) -> RowLayout:
        """Unused: no kernel that reads a layout is installed."""
        raise NotImplementedError

    @property
    def kv(self) -> KVCache:
        """Unused: nothing is cached."""
        raise NotImplementedError

    def attend(
        self, layer_index: int, query_RQD: Tensor, key_RKD: Tensor, value_RKD: Tensor
    ) -> Tensor:
        """Causal attention inside each sequence: [R, Q, D]."""
        del layer_index
        query, key, value = (
            rows.view(self._batch, -1, *rows.shape[1:]).transpose(1, 2)
            for rows in (query_RQD, key_RKD, value_RKD)
        )
        output = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return output.transpose(1, 2).flatten(0, 1)

    def observe(self, layer_index: int, site: Site, hidden_RH: Tensor) -> None:
        """Keep a residual state; whoever runs layer by layer may take it away."""
        self.observed[layer_index, site] = hidden_RH


class PaddedBatch(WholeSequences):
    """Keeps the outputs of the wanted layers only."""

    def __init__(self, batch: int, length: int, wanted: frozenset[int] = frozenset()) -> None:
        super().__init__(batch, length)
        self._wanted = wanted

    def observe(self, layer_index: int, site: Site, hidden_RH: Tensor) -> None:
        """Keep the outputs of the wanted layers."""
        if site is Site.MLP and layer_index in self._wanted:
            super().observe(layer_index, site, hidden_RH)
