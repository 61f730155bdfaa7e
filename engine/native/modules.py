"""The decoder's sub-blocks as native modules, and the function that puts them in a model.

They take the place of the modules in ``engine.models.decoder`` with the same call signatures. Each
call is one C function over packed weights; a row's result has the same bits whatever other rows
are in the block and whatever part of its context is committed.

Legend: R rows, H hidden, L rows whose logits are wanted.
"""

from __future__ import annotations

import ctypes
import weakref

import torch
from torch import Tensor, nn

from engine.block import RowLayout
from engine.interfaces import StepContext, TopTokens
from engine.kv_cache import KVCache
from engine.models.decoder import Attention, Decoder, GatedMLP
from engine.models.layers import Linear, RMSNorm, Rotary
from engine.native.availability import load_library
from engine.native.library import (
    AttentionArguments,
    HeadArguments,
    KernelLibrary,
    MlpArguments,
    Step,
)
from engine.native.packing import WeightArena, pack_gate_up, pack_weight, packed_bytes
from parallel.collectives import all_reduce
from parallel.mesh import Mesh
from parallel.tensor import RowParallelLinear


class Runtime:
    """What the native modules of one model share: functions, work memory, tables, the step's rows."""

    def __init__(self, library: KernelLibrary, arena: WeightArena) -> None:
        self.library, self.arena = library, arena
        self.workspace = library.create_workspace()
        weakref.finalize(self, library.destroy_workspace, self.workspace)
        self.step = Step()
        self.step_address = ctypes.addressof(self.step)
        self._layout: RowLayout | None = None
        self._kept: tuple[Tensor, ...] = ()
        self._tables: dict[Rotary, tuple[Tensor, Tensor]] = {}

    def pack(self, weight_OI: Tensor) -> Tensor:
        """A weight in the kernels' layout."""
        return self.arena.place(pack_weight(weight_OI, self.library.block_columns))

    def pack_gate_up(self, weight_OI: Tensor) -> Tensor:
        """Gate and up rows in the kernels' layout, blocks alternating."""
        return self.arena.place(pack_gate_up(weight_OI, self.library.block_columns))

    def bind_rows(self, context: StepContext, num_rows: int) -> None:
        """Point the step structure at this block's rows; does nothing for the same block again."""
        layout = context.layout
        if layout is self._layout:
            return
        positions = context.positions
        assert positions.shape[0] == num_rows == layout.row_slot.shape[0]
        kept = (
            positions,
            layout.row_slot,
            layout.row_prefix,
            layout.path_offsets,
            layout.path_rows,
        )
        assert all(tensor.is_contiguous() for tensor in kept)
        step = self.step
        step.num_rows, step.num_threads = num_rows, torch.get_num_threads()
        step.positions, step.row_slot, step.row_prefix, step.path_offsets, step.path_rows = (
            tensor.data_ptr() for tensor in kept
        )
        self._layout, self._kept = layout, kept

    def rotary_tables(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Cosines and sines in fp32, [S, D / 2]; one copy for all layers."""
        if rotary not in self._tables:
            self._tables[rotary] = (
                rotary.cos_SD.float().contiguous(),
                rotary.sin_SD.float().contiguous(),
            )
        return self._tables[rotary]


class NativeAttention(nn.Module):
    """The attention sub-block: norm, qkv, head norms, rotary, attention, output projection."""

    def __init__(self, attention: Attention, runtime: Runtime) -> None:
        super().__init__()
        self.index = attention.index
        self.num_heads, self.num_kv_heads = attention.num_heads, attention.num_kv_heads
        self.head_dim = attention.head_dim
        self._runtime = runtime
        self._call = runtime.library.attention
        self._step_address, self._workspace = runtime.step_address, runtime.workspace
        output, self._mesh = _row_parallel(attention.o)
        qkv = _weight(attention.qkv)
        tables = runtime.rotary_tables(attention.rotary)
        self._kept = (runtime.pack(qkv), runtime.pack(output), *tables)
        self._norms = [attention.norm, attention.q_norm, attention.k_norm]
        self._arguments = self._fill(qkv.shape[1])
        self._address = ctypes.addressof(self._arguments)
        self._kv: KVCache | None = None

    def forward(self, hidden_RH: Tensor, context: StepContext) -> Tensor:
        """[R, H] -> [R, H]."""
        hidden_RH = hidden_RH.contiguous()
        self._runtime.bind_rows(context, hidden_RH.shape[0])
        if context.kv is not self._kv:
            self._bind_cache(context.kv)
        out_RH = torch.empty_like(hidden_RH)
        self._call(
            self._address,
            self._step_address,
            hidden_RH.data_ptr(),
            out_RH.data_ptr(),
            self._workspace,
        )
        return out_RH if self._mesh is None else all_reduce(out_RH, self._mesh)

    def _fill(self, hidden_size: int) -> AttentionArguments:
        norm, query_norm, key_norm = self._norms
        qkv, output, cosines, sines = self._kept
        assert norm is not None
        return AttentionArguments(
            hidden_size=hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            rotary_stride=cosines.shape[1],
            epsilon=norm.eps,
            head_epsilon=norm.eps if query_norm is None else query_norm.eps,
            scale=self.head_dim**-0.5,
            norm=norm.weight.data_ptr(),
            query_norm=None if query_norm is None else query_norm.weight.data_ptr(),
            key_norm=None if key_norm is None else key_norm.weight.data_ptr(),
            qkv=qkv.data_ptr(),
            output=output.data_ptr(),
            cosines=cosines.data_ptr(),
            sines=sines.data_ptr(),
        )

    def _bind_cache(self, kv: KVCache) -> None:
        layer, arguments = kv.local(self.index), self._arguments
        assert kv.keys.is_contiguous()
        assert kv.scratch_keys.is_contiguous()
        assert kv.keys.shape[2] == self.num_kv_heads
        arguments.keys, arguments.values = kv.keys[layer].data_ptr(), kv.values[layer].data_ptr()
        arguments.scratch_keys = kv.scratch_keys[layer].data_ptr()
        arguments.scratch_values = kv.scratch_values[layer].data_ptr()
        arguments.slot_stride, arguments.head_stride = kv.keys.stride()[1:3]
        arguments.scratch_row_stride = kv.scratch_keys.stride(1)
        self._kv = kv


class NativeMLP(nn.Module):
    """The gated MLP sub-block: norm, gate and up, SiLU product, down."""

    def __init__(self, mlp: GatedMLP, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._call, self._workspace = runtime.library.mlp, runtime.workspace
        gate_up = _weight(mlp.gate_up)
        down, self._mesh = _row_parallel(mlp.down)
        self._norm = mlp.norm
        self._kept = (runtime.pack_gate_up(gate_up), runtime.pack(down))
        self._arguments = MlpArguments(
            gate_up.shape[1],
            down.shape[1],
            mlp.norm.eps,
            mlp.norm.weight.data_ptr(),
            *(tensor.data_ptr() for tensor in self._kept),
        )
        self._address = ctypes.addressof(self._arguments)

    def forward(self, hidden_RH: Tensor) -> Tensor:
        """[R, H] -> [R, H]."""
        hidden_RH = hidden_RH.contiguous()
        out_RH = torch.empty_like(hidden_RH)
        self._call(
            self._address,
            hidden_RH.shape[0],
            torch.get_num_threads(),
            hidden_RH.data_ptr(),
            out_RH.data_ptr(),
            self._workspace,
        )
        return out_RH if self._mesh is None else all_reduce(out_RH, self._mesh)


class NativeHead(nn.Module):
    """Final norm, vocabulary projection and arg-max; logits stay in registers."""

    def __init__(self, norm: RMSNorm, head: Linear, vocab_start: int, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._norm = norm
        self._packed = runtime.pack(head.weight)
        self._arguments = HeadArguments(
            head.in_features,
            head.out_features,
            norm.eps,
            vocab_start,
            norm.weight.data_ptr(),
            self._packed.data_ptr(),
        )

    def forward(self, hidden_LH: Tensor) -> TopTokens:
        """[L, H] -> top values (fp32), global ids and runner-up values, [L] each."""
        hidden_LH = hidden_LH.contiguous()
        rows = hidden_LH.shape[0]
        values_L, runner_up_L = hidden_LH.new_empty((2, rows), dtype=torch.float32)
        ids_L = torch.empty(rows, dtype=torch.int64)
        self._runtime.library.head(
            ctypes.addressof(self._arguments),
            rows,
            torch.get_num_threads(),
            hidden_LH.data_ptr(),
            values_L.data_ptr(),
            ids_L.data_ptr(),
            runner_up_L.data_ptr(),
            self._runtime.workspace,
        )
        return TopTokens(values_L, ids_L, runner_up_L)


def _row_parallel(linear: nn.Module) -> tuple[Tensor, Mesh | None]:
    """A linear layer's local weight, and the mesh over which its output must be summed."""
    if isinstance(linear, RowParallelLinear):
        return _weight(linear.inner), linear.mesh
    return _weight(linear), None


def _weight(linear: nn.Module) -> Tensor:
    assert isinstance(linear, Linear)
    return linear.weight


def nativize(model: Decoder) -> None:
    """Replace attention, MLP and head of every layer by native modules; in place.

    Raises:
        NativeBuildError: there are no native kernels here.
        ValueError: a size does not fit the vector width; the model is left as it was.
    """
    library = load_library(model.dtype)
    _check_sizes(model, library.lanes)
    runtime = Runtime(library, WeightArena(_arena_bytes(model, library.block_columns), library))
    for layer in model.layers.values():
        layer.attention = NativeAttention(layer.attention, runtime)  # type: ignore[arg-type]
        layer.mlp = NativeMLP(layer.mlp, runtime)  # type: ignore[arg-type]
    if model.head is not None:
        head, norm = model.head, model.norm
        assert isinstance(head, Linear)
        assert isinstance(norm, RMSNorm)
        model.fused_top = NativeHead(norm, head, model.vocab_start, runtime)


def _arena_bytes(model: Decoder, block_columns: int) -> int:
    """Packed size of every linear layer; gate and up are padded on their own."""
    total = 0
    for module in model.modules():
        if isinstance(module, GatedMLP):
            outputs, inputs = _weight(module.gate_up).shape
            halves = 2 * -(-outputs // 2 // block_columns) * block_columns
            total += packed_bytes((halves, inputs), model.dtype.itemsize, block_columns)
        elif isinstance(module, Linear):
            outputs, inputs = module.weight.shape
            total += packed_bytes((outputs, inputs), model.dtype.itemsize, block_columns)
    return total


def _check_sizes(model: Decoder, lanes: int) -> None:
    config = model.config
    if config.hidden_size % lanes != 0:
        raise ValueError(
            f"hidden_size={config.hidden_size} must be a multiple of {lanes} for native kernels"
        )
    if config.head_dim % (2 * lanes) != 0:
        raise ValueError(
            f"head_dim={config.head_dim} must be a multiple of {2 * lanes} for native kernels"
        )
