"""An EAGLE-3 head as one native call per draft: new pairs and a greedy chain, no tensor in between.

The chain of a small head is a hundred small operations; called one by one they cost several times
what they compute. ``drafters.eagle3_chain.TorchChain`` says the same in torch.
"""

from __future__ import annotations

import ctypes

import torch

from drafters.draft_tree import ChainShape
from drafters.eagle3_chain import HeadState, Pairs
from drafters.eagle3_head import Eagle3Head
from engine.models.decoder import GatedMLP
from engine.models.layers import Linear
from engine.native.availability import load_library, native_available
from engine.native.library import DTYPES, Eagle3Arguments, Eagle3Call
from engine.native.modules import (
    NativeHead,
    NativeMLP,
    linear_shape,
    linear_weight,
    packed_mlp_shapes,
)
from engine.native.packing import WeightArena, packed_bytes
from engine.native.runtime import Runtime


def can_nativize(head: Eagle3Head) -> bool:
    """Whether native kernels compute this head here."""
    layer, config = head.config.layer, head.config
    if head.dtype not in DTYPES or not native_available() or not config.norm_before_logits:
        return False
    lanes = load_library(head.dtype).lanes
    return layer.hidden_size % lanes == 0 and layer.head_dim % (2 * lanes) == 0


class NativeEagle3:
    """Implements ``ChainDrafting`` with weights in the kernels' layout; one draft at a time."""

    def __init__(self, head: Eagle3Head) -> None:
        """Before the head packs its own layers; ``can_nativize`` must hold."""
        layer, mlp, lm_head = head.midlayer, head.midlayer.mlp, head.lm_head
        assert isinstance(mlp, GatedMLP)
        assert isinstance(lm_head, Linear)
        self._head = head
        library = load_library(head.dtype)
        shapes = [linear_shape(one) for one in (layer.qkv, layer.o, lm_head)]
        shapes += packed_mlp_shapes(mlp)
        num_bytes = [
            packed_bytes(one, head.dtype.itemsize, library.block_columns) for one in shapes
        ]
        self._runtime = Runtime(library, WeightArena(sum(num_bytes), library))
        pack = self._runtime.pack
        self._packed = (pack(linear_weight(layer.qkv)), pack(linear_weight(layer.o)))
        self._mlp = NativeMLP(mlp, self._runtime)
        self._top = NativeHead(head.norm, lm_head, 0, self._runtime)
        self._target_ids = head.vocabulary.target_ids.contiguous()
        self._tables = self._runtime.rotary_tables(head.rotary)
        self._arguments = self._fill()

    def read(self, state: HeadState, pairs: Pairs) -> None:
        """As the protocol says."""
        self._call(state, pairs, num_drafts=0, min_probability=0.0)

    def draft(self, state: HeadState, pairs: Pairs, shape: ChainShape) -> tuple[int, ...]:
        """As the protocol says."""
        return self._call(
            state, pairs, num_drafts=shape.num_tokens, min_probability=shape.min_probability
        )

    def _call(
        self, state: HeadState, pairs: Pairs, *, num_drafts: int, min_probability: float
    ) -> tuple[int, ...]:
        self._use_tables()
        keys, values = state.cache.reserve(state.num_pairs + len(pairs) + num_drafts)
        features_RH = pairs.features.contiguous()
        token_ids = torch.tensor(pairs.token_ids, dtype=torch.int64)
        drafted = torch.empty(num_drafts, dtype=torch.int64)
        call = Eagle3Call(
            num_threads=torch.get_num_threads(),
            num_pairs=len(pairs),
            num_drafts=num_drafts,
            min_probability=min_probability,
            start=state.num_pairs,
            features=features_RH.data_ptr(),
            token_ids=token_ids.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            head_stride=keys.stride(0),
            newest=state.newest.data_ptr(),
            drafted=drafted.data_ptr(),
            num_drafted=0,
        )
        self._runtime.library.eagle3(
            ctypes.addressof(self._arguments), ctypes.addressof(call), self._runtime.workspace
        )
        state.advance(pairs)
        return tuple(drafted[: call.num_drafted].tolist())

    def _use_tables(self) -> None:
        """The head's rotary tables grow."""
        tables = self._runtime.rotary_tables(self._head.rotary)
        if tables is not self._tables:
            self._tables = tables
            self._arguments.cosines, self._arguments.sines = (one.data_ptr() for one in tables)

    def _fill(self) -> Eagle3Arguments:
        head, layer = self._head, self._head.midlayer
        (qkv, output), (cosines, sines) = self._packed, self._tables
        return Eagle3Arguments(
            hidden_size=head.config.layer.hidden_size,
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            rotary_stride=cosines.shape[1],
            norm_before_residual=layer.norm_before_residual,
            norm_feedback=head.config.norm_feedback,
            epsilon=layer.hidden_norm.eps,
            scale=layer.head_dim**-0.5,
            embedding=head.embed.weight.data_ptr(),
            input_norm=layer.input_norm.weight.data_ptr(),
            hidden_norm=layer.hidden_norm.weight.data_ptr(),
            qkv=qkv.data_ptr(),
            output=output.data_ptr(),
            cosines=cosines.data_ptr(),
            sines=sines.data_ptr(),
            target_ids=self._target_ids.data_ptr(),
            mlp=self._mlp.address,
            head=self._top.address,
        )
