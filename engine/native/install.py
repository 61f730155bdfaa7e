"""Puts native modules in the place of a decoder's own."""

from __future__ import annotations

from torch import nn

from engine.models.decoder import Attention, Decoder, DecoderLayer, GatedMLP
from engine.models.layers import Linear, RMSNorm
from engine.native.availability import load_library
from engine.native.layers import NativeLayers
from engine.native.modules import (
    NativeAttention,
    NativeHead,
    NativeMLP,
    UnpackingLinear,
    linear_weight,
)
from engine.native.packing import WeightArena, packed_bytes
from engine.native.runtime import Runtime


def nativize(model: Decoder) -> None:
    """Replace the attention and MLP of every layer, and the head, by native modules; in place.

    The original weights are freed as they are packed, but for the embedding.

    Raises:
        NativeBuildError: there are no native kernels here.
        ValueError: a size does not fit the vector width; the model is left as it was.
    """
    library = load_library(model.dtype)
    _check_sizes(model, library.lanes)
    arena = WeightArena(_arena_bytes(model, library.block_columns), library)
    runtime = Runtime(library, arena)
    layers: list[DecoderLayer] = []
    for layer in model.layers.values():
        assert isinstance(layer, DecoderLayer)
        assert isinstance(layer.attention, Attention)
        assert isinstance(layer.mlp, GatedMLP)
        layer.attention = NativeAttention(layer.attention, runtime)
        layer.mlp = NativeMLP(layer.mlp, runtime)
        layers.append(layer)
    if model.head is not None:
        _install_head(model, runtime)
    if layers and all(layer.mlp.mesh is None for layer in layers):
        model.fused_layers = NativeLayers(layers, runtime)


def _install_head(model: Decoder, runtime: Runtime) -> None:
    head, norm = model.head, model.norm
    assert isinstance(head, Linear)
    assert isinstance(norm, RMSNorm)
    model.fused_top = NativeHead(norm, head, model.vocab_start, runtime)
    if not _is_embedding(model, head):
        packed = model.fused_top.packed
        model.head = UnpackingLinear(packed, head.out_features, head.in_features)


def _is_embedding(model: Decoder, head: Linear) -> bool:
    parameters = () if model.embed is None else model.embed.parameters()
    return any(parameter is head.weight for parameter in parameters)


def _arena_bytes(model: nn.Module, block_columns: int) -> int:
    """Packed size of every linear layer; gate and up are padded on their own."""
    total = 0
    for module in model.modules():
        if isinstance(module, GatedMLP):
            outputs, inputs = linear_weight(module.gate_up).shape
            gate = (outputs // 2, inputs)
            total += 2 * packed_bytes(gate, module.norm.weight.element_size(), block_columns)
        elif isinstance(module, Linear):
            shape = (module.out_features, module.in_features)
            total += packed_bytes(shape, module.weight.element_size(), block_columns)
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
