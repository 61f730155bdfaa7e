"""The compiled kernels as ctypes functions, and the structures they take.

A call is one C function with one parallel region; ctypes releases the interpreter lock around it.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.native.build import NativeBuildError

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}


class Step(ctypes.Structure):
    """``Step`` of layout.h: the rows of one block."""

    _fields_ = (
        ("num_rows", c_int32),
        ("num_threads", c_int32),
        ("positions", c_void_p),
        ("row_slot", c_void_p),
        ("row_prefix", c_void_p),
        ("path_offsets", c_void_p),
        ("path_rows", c_void_p),
    )


class AttentionArguments(ctypes.Structure):
    """``AttentionArguments`` of attention_block.h."""

    _fields_ = (
        ("hidden_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_stride", c_int32),
        ("epsilon", c_float),
        ("head_epsilon", c_float),
        ("scale", c_float),
        ("norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("qkv", c_void_p),
        ("output", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("scratch_keys", c_void_p),
        ("scratch_values", c_void_p),
        ("slot_stride", c_int64),
        ("head_stride", c_int64),
        ("scratch_row_stride", c_int64),
    )


class MlpArguments(ctypes.Structure):
    """``MlpArguments`` of mlp_block.h."""

    _fields_ = (
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("epsilon", c_float),
        ("norm", c_void_p),
        ("gate_up", c_void_p),
        ("down", c_void_p),
    )


class HeadArguments(ctypes.Structure):
    """``HeadArguments`` of head_block.h."""

    _fields_ = (
        ("hidden_size", c_int32),
        ("vocab_size", c_int32),
        ("epsilon", c_float),
        ("first_id", c_int64),
        ("norm", c_void_p),
        ("head", c_void_p),
    )


class Eagle3Arguments(ctypes.Structure):
    """``Eagle3Arguments`` of eagle3_block.h."""

    _fields_ = (
        ("hidden_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_stride", c_int32),
        ("norm_before_residual", c_int32),
        ("norm_feedback", c_int32),
        ("epsilon", c_float),
        ("scale", c_float),
        ("embedding", c_void_p),
        ("input_norm", c_void_p),
        ("hidden_norm", c_void_p),
        ("qkv", c_void_p),
        ("output", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("target_ids", c_void_p),
        ("mlp", c_void_p),
        ("head", c_void_p),
    )


class Eagle3Call(ctypes.Structure):
    """``Eagle3Call`` of eagle3_block.h: one draft."""

    _fields_ = (
        ("num_threads", c_int32),
        ("num_pairs", c_int32),
        ("num_drafts", c_int32),
        ("min_probability", c_float),
        ("start", c_int64),
        ("features", c_void_p),
        ("token_ids", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("head_stride", c_int64),
        ("newest", c_void_p),
        ("drafted", c_void_p),
        ("num_drafted", c_int32),
    )


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """The functions of one dtype, and the shape of packed weights."""

    attention: Any
    mlp: Any
    layers: Any
    head: Any
    eagle3: Any
    advise_huge_pages: Any
    create_workspace: Any
    destroy_workspace: Any
    lanes: int
    """fp32 numbers in a vector register."""
    block_columns: int
    """Output columns of a block of packed weights."""


def open_library(path: Path, dtype: torch.dtype) -> KernelLibrary:
    """Load a compiled library and declare the functions for ``dtype``.

    Raises:
        NativeBuildError: the file is not such a library.
    """
    suffix = DTYPES[dtype]
    try:
        library = ctypes.CDLL(str(path))
        attention = _declare(library, f"native_attention_{suffix}", [c_void_p] * 5)
        mlp = _declare(library, f"native_mlp_{suffix}", _rows_then(3))
        layers = _declare(
            library,
            f"native_layers_{suffix}",
            [c_void_p, c_void_p, ctypes.c_int, c_void_p, c_void_p, c_void_p, c_void_p],
        )
        head = _declare(library, f"native_head_{suffix}", _rows_then(6))
        eagle3 = _declare(library, f"native_eagle3_{suffix}", [c_void_p] * 3)
        advise = _declare(library, "native_advise_huge_pages", [c_void_p, ctypes.c_size_t])
        create = _declare(library, "native_workspace_create", [], c_void_p)
        destroy = _declare(library, "native_workspace_destroy", [c_void_p])
        lanes, columns = library.native_lanes(), library.native_block_columns()
    except (OSError, AttributeError) as error:
        raise NativeBuildError(f"the compiled kernels do not load: {error}") from error
    return KernelLibrary(
        attention, mlp, layers, head, eagle3, advise, create, destroy, lanes, columns
    )


def _declare(library: Any, name: str, arguments: list[Any], result: Any = None) -> Any:
    function = getattr(library, name)
    function.argtypes = arguments
    function.restype = result
    return function


def _rows_then(num_pointers: int) -> list[Any]:
    return [c_void_p, ctypes.c_int, ctypes.c_int, *[c_void_p] * num_pointers]
