"""The decoder's sub-blocks as native modules, called like those of ``engine.models.decoder``.

Each call is one C function over packed weights; a row's result has the same bits whatever other
rows are in the block and whatever part of its context is committed.

Legend: R rows, H hidden, L rows whose logits are wanted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.interfaces import StepContext, TopTokens
from engine.kv_cache import KVCache
from engine.models.decoder import Attention, GatedMLP
from engine.models.layers import Linear, RMSNorm
from engine.native.library import AttentionArguments, HeadArguments, MlpArguments
from engine.native.packing import unpack_weight
from engine.native.runtime import Runtime
from parallel.collectives import all_reduce
from parallel.mesh import Mesh
from parallel.tensor import RowParallelLinear


class NativeAttention(nn.Module):
    """The attention sub-block: norm, qkv, head norms, rotary, attention, output projection."""

    def __init__(self, attention: Attention, runtime: Runtime) -> None:
        super().__init__()
        self.index = attention.index
        self.num_heads, self.num_kv_heads = attention.num_heads, attention.num_kv_heads
        self.head_dim = attention.head_dim
        self._runtime = runtime
        qkv, (output, self.mesh) = linear_weight(attention.qkv), _row_parallel(attention.o)
        tables = runtime.rotary_tables(attention.rotary)
        self._kept = (runtime.pack(qkv), runtime.pack(output), *tables)
        self._norms = (attention.norm, attention.q_norm, attention.k_norm)
        self._arguments = self._fill(qkv.shape[1])
        self.address = ctypes.addressof(self._arguments)
        self._kv: KVCache | None = None

    def forward(self, hidden_RH: Tensor, context: StepContext) -> Tensor:
        """[R, H] -> [R, H]."""
        hidden_RH, runtime = hidden_RH.contiguous(), self._runtime
        out_RH = torch.empty_like(hidden_RH)
        runtime.bind_rows(context, hidden_RH.shape[0])
        self.bind_cache(context.kv)
        runtime.library.attention(
            self.address,
            runtime.step_address,
            hidden_RH.data_ptr(),
            out_RH.data_ptr(),
            runtime.workspace,
        )
        return out_RH if self.mesh is None else all_reduce(out_RH, self.mesh)

    def bind_cache(self, kv: KVCache) -> None:
        """Point the arguments at this layer's part of a cache; nothing to do for the same again."""
        if kv is self._kv:
            return
        self._runtime.prepare_cache(kv)
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

    def _fill(self, hidden_size: int) -> AttentionArguments:
        norm, query_norm, key_norm = self._norms
        qkv, output, cosines, sines = self._kept
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


class NativeMLP(nn.Module):
    """The gated MLP sub-block: norm, gate and up, SiLU product, down."""

    def __init__(self, mlp: GatedMLP, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        gate_up, (down, self.mesh) = linear_weight(mlp.gate_up), _row_parallel(mlp.down)
        self._norm = mlp.norm
        self._kept = (runtime.pack_gate_up(gate_up), runtime.pack(down))
        self._arguments = MlpArguments(
            hidden_size=gate_up.shape[1],
            intermediate_size=down.shape[1],
            epsilon=mlp.norm.eps,
            norm=mlp.norm.weight.data_ptr(),
            gate_up=self._kept[0].data_ptr(),
            down=self._kept[1].data_ptr(),
        )
        self.address = ctypes.addressof(self._arguments)

    def forward(self, hidden_RH: Tensor) -> Tensor:
        """[R, H] -> [R, H]."""
        hidden_RH, runtime = hidden_RH.contiguous(), self._runtime
        out_RH = torch.empty_like(hidden_RH)
        runtime.library.mlp(
            self.address,
            hidden_RH.shape[0],
            torch.get_num_threads(),
            hidden_RH.data_ptr(),
            out_RH.data_ptr(),
            runtime.workspace,
        )
        return out_RH if self.mesh is None else all_reduce(out_RH, self.mesh)


class NativeHead(nn.Module):
    """Final norm, vocabulary projection and arg-max in one call; logits come out where wanted."""

    def __init__(self, norm: RMSNorm, head: Linear, vocab_start: int, runtime: Runtime) -> None:
        super().__init__()
        self._runtime, self._norm = runtime, norm
        self.packed, self._vocab_size = runtime.pack(head.weight), head.out_features
        self._arguments = HeadArguments(
            hidden_size=head.in_features,
            vocab_size=head.out_features,
            epsilon=norm.eps,
            first_id=vocab_start,
            norm=norm.weight.data_ptr(),
            head=self.packed.data_ptr(),
        )
        self.address = ctypes.addressof(self._arguments)

    def forward(self, hidden_LH: Tensor) -> TopTokens:
        """[L, H] -> top values (fp32), global ids and runner-up values, [L] each."""
        return self._run(hidden_LH, None)

    def top_and_logits(self, hidden_LH: Tensor, rows: Sequence[int]) -> tuple[TopTokens, Tensor]:
        """``forward``, and the logits [len(rows), V] of some rows in fp32."""
        logits_SV = hidden_LH.new_empty((len(rows), self._vocab_size), dtype=torch.float32)
        targets = (ctypes.c_void_p * hidden_LH.shape[0])()
        for index, row in enumerate(rows):
            targets[row] = logits_SV[index].data_ptr()
        return self._run(hidden_LH, targets), logits_SV

    def _run(self, hidden_LH: Tensor, targets: ctypes.Array[ctypes.c_void_p] | None) -> TopTokens:
        hidden_LH, runtime = hidden_LH.contiguous(), self._runtime
        rows = hidden_LH.shape[0]
        values_L, runner_up_L = hidden_LH.new_empty((2, rows), dtype=torch.float32)
        ids_L = hidden_LH.new_empty(rows, dtype=torch.int64)
        runtime.library.head(
            self.address,
            rows,
            torch.get_num_threads(),
            hidden_LH.data_ptr(),
            values_L.data_ptr(),
            ids_L.data_ptr(),
            runner_up_L.data_ptr(),
            targets,
            runtime.workspace,
        )
        return TopTokens(values_L, ids_L, runner_up_L)


class UnpackingLinear(nn.Module):
    """Stands for the head's ``Linear`` where whole logits are wanted: unpacks at every call."""

    def __init__(self, packed: Tensor, out_features: int, in_features: int) -> None:
        super().__init__()
        self._packed = packed
        self.out_features, self.in_features = out_features, in_features

    def forward(self, features_RI: Tensor) -> Tensor:
        """[R, I] -> [R, O]."""
        weight = unpack_weight(self._packed, (self.out_features, self.in_features))
        return functional.linear(features_RI, weight)


def linear_weight(linear: nn.Module) -> Tensor:
    """The local weight of a linear layer, whether or not its output is summed over ranks."""
    inner = linear.inner if isinstance(linear, RowParallelLinear) else linear
    assert isinstance(inner, Linear)
    return inner.weight


def linear_shape(linear: nn.Module) -> tuple[int, int]:
    """Local [O, I] of a linear layer."""
    outputs, inputs = linear_weight(linear).shape
    return outputs, inputs


def packed_mlp_shapes(mlp: GatedMLP) -> list[tuple[int, int]]:
    """[O, I] of an MLP's packed weights; gate and up are padded each on its own."""
    outputs, inputs = linear_shape(mlp.gate_up)
    return [(outputs // 2, inputs), (outputs // 2, inputs), linear_shape(mlp.down)]


def _row_parallel(linear: nn.Module) -> tuple[Tensor, Mesh | None]:
    mesh = linear.mesh if isinstance(linear, RowParallelLinear) else None
    return linear_weight(linear), mesh
