"""What the native modules of one model share: functions, memory, tables, the step's rows."""

from __future__ import annotations

import ctypes
import weakref

import torch
from torch import Tensor

from engine.block import RowLayout
from engine.interfaces import StepContext
from engine.kv_cache import KVCache
from engine.models.layers import Rotary
from engine.native.library import KernelLibrary, Step
from engine.native.packing import WeightArena, pack_gate_up, pack_weight


class Runtime:
    """Shared by all native modules of a model; calls of one model must not overlap."""

    def __init__(self, library: KernelLibrary, arena: WeightArena) -> None:
        self.library, self._arena = library, arena
        self.workspace = library.create_workspace()
        weakref.finalize(self, library.destroy_workspace, self.workspace)
        self.step = Step()
        self.step_address = ctypes.addressof(self.step)
        self._layout: RowLayout | None = None
        self._kept: tuple[Tensor, ...] = ()
        self._kv: KVCache | None = None
        self._tables: dict[Rotary, tuple[Tensor, Tensor]] = {}

    def pack(self, weight_OI: Tensor) -> Tensor:
        """A weight in the kernels' layout."""
        return self._arena.place(pack_weight(weight_OI, self.library.block_columns))

    def pack_gate_up(self, weight_OI: Tensor) -> Tensor:
        """Gate and up rows in the kernels' layout, blocks alternating."""
        return self._arena.place(pack_gate_up(weight_OI, self.library.block_columns))

    def rotary_tables(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Cosines and sines in fp32, [S, D / 2]; one copy for all layers."""
        if rotary not in self._tables:
            cosines, sines = rotary.cos_SD.float(), rotary.sin_SD.float()
            self._tables[rotary] = (cosines.contiguous(), sines.contiguous())
        return self._tables[rotary]

    def prepare_cache(self, kv: KVCache) -> None:
        """Ask for huge pages under a cache that is new to this model."""
        if kv is self._kv:
            return
        for tensor in (kv.keys, kv.values):
            num_bytes = tensor.numel() * tensor.element_size()
            self.library.advise_huge_pages(tensor.data_ptr(), num_bytes)
        self._kv = kv

    def bind_rows(self, context: StepContext, num_rows: int) -> None:
        """Point the step structure at this block's rows; does nothing for the same block again."""
        layout = context.layout
        if layout is self._layout:
            return
        kept = (
            context.positions,
            layout.row_slot,
            layout.row_prefix,
            layout.path_offsets,
            layout.path_rows,
        )
        assert kept[0].shape[0] == num_rows == layout.row_slot.shape[0]
        assert kept[0].dtype == torch.int64
        assert all(tensor.is_contiguous() for tensor in kept)
        assert all(tensor.dtype == torch.int32 for tensor in kept[1:])
        step = self.step
        step.num_rows, step.num_threads = num_rows, torch.get_num_threads()
        step.positions, step.row_slot, step.row_prefix, step.path_offsets, step.path_rows = (
            tensor.data_ptr() for tensor in kept
        )
        self._layout, self._kept = layout, kept
