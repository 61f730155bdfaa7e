"""All layers of a stage as one C call, cut only where somebody reads the residual stream.

Sixty module calls cost about a tenth of a one-row step: their Python state is evicted by the
weights that stream through the caches between them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from ctypes import c_void_p
from dataclasses import dataclass

from torch import Tensor, nn

from engine.interfaces import StepContext
from engine.kv_cache import KVCache
from engine.models.decoder import DecoderLayer
from engine.native.modules import NativeAttention, NativeMLP
from engine.native.runtime import Runtime
from engine.step_context import BlockContext

_POINTER = ctypes.sizeof(c_void_p)


@dataclass(frozen=True, slots=True)
class _Run:
    """Layers ``first .. first+count-1``, fused; a single observed layer is run as a module."""

    first: int
    count: int
    observed: bool


class NativeLayers(nn.Module):
    """The layers of one stage on one tensor-parallel rank; same bits as running them one by one."""

    def __init__(self, layers: list[DecoderLayer], runtime: Runtime) -> None:
        super().__init__()
        self._layers, self._runtime = layers, runtime
        self._indices = tuple(layer.index for layer in layers)
        attentions = [layer.attention for layer in layers]
        self._attentions = [block for block in attentions if isinstance(block, NativeAttention)]
        mlps = [layer.mlp for layer in layers if isinstance(layer.mlp, NativeMLP)]
        assert len(self._attentions) == len(mlps) == len(layers)
        pointers = c_void_p * len(layers)
        self._attention_pointers = pointers(*(block.address for block in self._attentions))
        self._mlp_pointers = pointers(*(block.address for block in mlps))
        self._kv: KVCache | None = None
        self._plans: dict[frozenset[int], tuple[_Run, ...]] = {}

    def forward(self, hidden_RH: Tensor, context: StepContext) -> Tensor:
        """[R, H] -> [R, H], through every layer; observed layers are shown to the context."""
        observed = context.observed_layers if isinstance(context, BlockContext) else None
        for run in self._plan(self._indices if observed is None else observed):
            if run.observed:
                hidden_RH = self._layers[run.first](hidden_RH, context)
            else:
                hidden_RH = self._run_fused(run, hidden_RH, context)
        return hidden_RH

    def _run_fused(self, run: _Run, hidden_RH: Tensor, context: StepContext) -> Tensor:
        stream_RH, runtime = hidden_RH.contiguous().clone(), self._runtime
        runtime.bind_rows(context, stream_RH.shape[0])
        self._bind_cache(context.kv)
        runtime.library.layers(
            ctypes.addressof(self._attention_pointers) + run.first * _POINTER,
            ctypes.addressof(self._mlp_pointers) + run.first * _POINTER,
            run.count,
            runtime.step_address,
            stream_RH.data_ptr(),
            runtime.workspace,
        )
        return stream_RH

    def _bind_cache(self, kv: KVCache) -> None:
        if kv is self._kv:
            return
        for attention in self._attentions:
            attention.bind_cache(kv)
        self._kv = kv

    def _plan(self, observed: Collection[int]) -> tuple[_Run, ...]:
        key = frozenset(observed)
        if key not in self._plans:
            self._plans[key] = tuple(_cut(self._indices, key))
        return self._plans[key]


def _cut(indices: tuple[int, ...], observed: frozenset[int]) -> list[_Run]:
    runs: list[_Run] = []
    for position, index in enumerate(indices):
        if index in observed or not runs or runs[-1].observed:
            runs.append(_Run(position, 1, index in observed))
        else:
            runs[-1] = _Run(runs[-1].first, runs[-1].count + 1, observed=False)
    return runs
