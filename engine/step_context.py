"""The context of one forward pass: rows, KV, attention backend and taps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.block import Block, RowLayout
from engine.interfaces import Site
from engine.kv_cache import KVCache

AttentionStep = Callable[[int, Tensor], Tensor]
"""(local layer, query [R, Q, D]) to output [R, Q, D], for keys already in cache and scratch."""

AttentionBackend = Callable[[Block, KVCache], AttentionStep]
"""Prepares the masks of one block once, for all layers."""

Tap = Callable[[int, Site, Tensor], None]
"""Called with (global layer index, site, hidden [R, H]) for every residual state of a pass."""


@dataclass(slots=True)
class BlockContext:
    """Implements ``engine.interfaces.StepContext`` for one block."""

    block: Block
    kv: KVCache
    attention: AttentionBackend
    tap: Tap | None = None
    tapped_layers: frozenset[int] | None = None
    """Layers that the tap reads; None for all. Others may run fused, without being shown."""
    _step: AttentionStep | None = None

    @property
    def positions(self) -> Tensor:
        """[R] absolute positions."""
        return self.block.positions

    @property
    def layout(self) -> RowLayout:
        """Which keys every row sees."""
        return self.block.layout

    @property
    def observed_layers(self) -> frozenset[int] | None:
        """Layers whose states must be shown to ``observe``; None for all."""
        return frozenset() if self.tap is None else self.tapped_layers

    def attend(
        self, layer_index: int, query_RQD: Tensor, key_RKD: Tensor, value_RKD: Tensor
    ) -> Tensor:
        """Write the new keys and values to the scratch and attend."""
        self.kv.write(layer_index, key_RKD, value_RKD)
        if self._step is None:  # native attention never asks, so masks are built on first use
            self._step = self.attention(self.block, self.kv)
        return self._step(self.kv.local(layer_index), query_RQD)

    def observe(self, layer_index: int, site: Site, hidden_RH: Tensor) -> None:
        """Pass a residual state on to the tap, if there is one."""
        if self.tap is not None:
            self.tap(layer_index, site, hidden_RH)
