"""All layers of a stage as one C call, which copies the residual states that somebody reads.

Sixty module calls cost about a tenth of a one-row step: their Python state is evicted by the
weights that stream through the caches between them.

Legend: R rows, H hidden, N observed layers.
"""

from __future__ import annotations

import ctypes
from ctypes import c_void_p

from torch import Tensor, nn

from engine.interfaces import Site, StepContext
from engine.kv_cache import KVCache
from engine.models.decoder import DecoderLayer
from engine.native.modules import NativeAttention, NativeMLP
from engine.native.runtime import Runtime
from engine.step_context import BlockContext

_SITES = (Site.ATTENTION, Site.MLP)


class NativeLayers(nn.Module):
    """The layers of one stage on one tensor-parallel rank; same bits as running them one by one."""

    def __init__(self, layers: list[DecoderLayer], runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._indices = tuple(layer.index for layer in layers)
        attentions = [layer.attention for layer in layers]
        self._attentions = [block for block in attentions if isinstance(block, NativeAttention)]
        mlps = [layer.mlp for layer in layers if isinstance(layer.mlp, NativeMLP)]
        assert len(self._attentions) == len(mlps) == len(layers)
        self._kept = mlps
        """Owners of the memory that the pointers lead to."""
        pointers = c_void_p * len(layers)
        self._attention_pointers = pointers(*(block.address for block in self._attentions))
        self._mlp_pointers = pointers(*(block.address for block in mlps))
        self._kv: KVCache | None = None

    def forward(self, hidden_RH: Tensor, context: StepContext) -> Tensor:
        """[R, H] -> [R, H], through every layer; observed layers are shown to the context."""
        observed = context.observed_layers if isinstance(context, BlockContext) else None
        wanted = [i for i in self._indices if observed is None or i in observed]
        stream_RH = hidden_RH.contiguous().clone()
        states = stream_RH.new_empty(len(wanted), len(_SITES), *stream_RH.shape)
        self._run(stream_RH, context, self._places(wanted, states))
        for index, (behind_attention, behind_mlp) in zip(wanted, states, strict=True):
            context.observe(index, Site.ATTENTION, behind_attention)
            context.observe(index, Site.MLP, behind_mlp)
        return stream_RH

    def _run(self, stream_RH: Tensor, context: StepContext, shown: ctypes.Array[c_void_p]) -> None:
        """All layers on the stream, in place."""
        runtime = self._runtime
        runtime.bind_rows(context, stream_RH.shape[0])
        self._bind_cache(context.kv)
        runtime.library.layers(
            ctypes.addressof(self._attention_pointers),
            ctypes.addressof(self._mlp_pointers),
            len(self._indices),
            runtime.step_address,
            stream_RH.data_ptr(),
            ctypes.addressof(shown),
            runtime.workspace,
        )

    def _places(self, wanted: list[int], states: Tensor) -> ctypes.Array[c_void_p]:
        """Where the kernel copies each layer's two states, or null: states is [N, 2, R, H]."""
        shown = (c_void_p * (len(_SITES) * len(self._indices)))()
        for place, index in enumerate(wanted):
            first = len(_SITES) * self._indices.index(index)
            for site in range(len(_SITES)):
                shown[first + site] = states[place, site].data_ptr()
        return shown

    def _bind_cache(self, kv: KVCache) -> None:
        if kv is self._kv:
            return
        for attention in self._attentions:
            attention.bind_cache(kv)
        self._kv = kv
