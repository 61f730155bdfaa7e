"""Native modules for single parts of a drafter that is no decoder: an MLP, a vocabulary head."""

from __future__ import annotations

import torch

from engine.models.decoder import GatedMLP
from engine.models.layers import Linear, RMSNorm
from engine.native.availability import load_library, native_available
from engine.native.library import DTYPES
from engine.native.modules import NativeHead, NativeMLP, linear_weight
from engine.native.packing import WeightArena, packed_bytes
from engine.native.runtime import Runtime


def can_nativize(hidden_size: int, dtype: torch.dtype) -> bool:
    """Whether native kernels compute ``dtype`` here at this width."""
    if dtype not in DTYPES or not native_available():
        return False
    return hidden_size % load_library(dtype).lanes == 0


def native_parts(
    mlp: GatedMLP, norm: RMSNorm, head: Linear, dtype: torch.dtype
) -> tuple[NativeMLP, NativeHead]:
    """Both in packed form; the given modules keep their own weights."""
    library = load_library(dtype)
    outputs, inputs = linear_weight(mlp.gate_up).shape
    shapes = [(outputs // 2, inputs)] * 2
    shapes += [_shape(mlp.down), (head.out_features, head.in_features)]
    sizes = [packed_bytes(shape, dtype.itemsize, library.block_columns) for shape in shapes]
    runtime = Runtime(library, WeightArena(sum(sizes), library))
    return NativeMLP(mlp, runtime), NativeHead(norm, head, 0, runtime)


def _shape(linear: torch.nn.Module) -> tuple[int, int]:
    outputs, inputs = linear_weight(linear).shape
    return outputs, inputs
