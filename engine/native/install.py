"""Puts native modules in the place of a decoder's own."""

from __future__ import annotations

from engine.models.decoder import Attention, Decoder, DecoderLayer, GatedMLP
from engine.models.layers import Linear, RMSNorm
from engine.native.availability import load_library, unavailable_reason
from engine.native.layers import NativeLayers
from engine.native.library import DTYPES, KernelLibrary
from engine.native.modules import (
    NativeAttention,
    NativeHead,
    NativeMLP,
    UnpackingLinear,
    linear_shape,
    packed_mlp_shapes,
)
from engine.native.packing import WeightArena, packed_bytes
from engine.native.runtime import Runtime


def nativize(model: Decoder) -> None:
    """Replace the attention and MLP of every layer, and the head, by native modules; in place.

    The original weights are freed as they are packed, but for the embedding.

    Raises:
        ValueError: they cannot run this model here; the model is left as it was.
    """
    reason = unsupported_reason(model)
    if reason is not None:
        raise ValueError(f"native kernels cannot be used: {reason}")
    install_library(model, load_library(model.dtype))


def install_library(model: Decoder, library: KernelLibrary) -> None:
    """``nativize`` with given kernels, whose vector width the model's sizes must fit."""
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


def _arena_bytes(model: Decoder, block_columns: int) -> int:
    """Packed size of every linear layer."""
    shapes: list[tuple[int, int]] = []
    for module in model.modules():
        if isinstance(module, GatedMLP):
            shapes += packed_mlp_shapes(module)
        elif isinstance(module, Attention):
            shapes += [linear_shape(module.qkv), linear_shape(module.o)]
    if model.head is not None:
        shapes.append(linear_shape(model.head))
    return sum(packed_bytes(shape, model.dtype.itemsize, block_columns) for shape in shapes)


def unsupported_reason(model: Decoder) -> str | None:
    """Why native kernels cannot run this model on this machine, or None if they can."""
    reason = unavailable_reason()
    if reason is not None:
        return reason
    if model.dtype not in DTYPES:
        return f"they do not compute {model.dtype}"
    lanes, config = load_library(model.dtype).lanes, model.config
    if config.hidden_size % lanes != 0:
        return f"hidden_size={config.hidden_size} is not a multiple of {lanes}"
    if config.head_dim % (2 * lanes) != 0:
        return f"head_dim={config.head_dim} is not a multiple of {2 * lanes}"
    return None
