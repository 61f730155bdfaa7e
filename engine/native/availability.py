"""Whether native kernels can be used here: compiled, loaded, and right on a small example."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional

from engine.cache_directory import default_cache_directory
from engine.native.build import NativeBuildError, build_library
from engine.native.library import DTYPES, KernelLibrary, MlpArguments, open_library
from engine.native.packing import pack_gate_up, pack_weight

logger = logging.getLogger(__name__)


def load_library(dtype: torch.dtype) -> KernelLibrary:
    """The kernels for ``dtype``.

    Raises:
        NativeBuildError: there are none here; see ``unavailable_reason``.
    """
    found = _find_library()
    if isinstance(found, str):
        raise NativeBuildError(found)
    return open_library(found, dtype)


def native_available() -> bool:
    """Whether the kernels can be used here: compiled, loaded, and right on a small example."""
    return not isinstance(_find_library(), str)


def unavailable_reason() -> str | None:
    """Why there are no native kernels, or None if there are."""
    found = _find_library()
    return found if isinstance(found, str) else None


@cache
def _find_library() -> Path | str:
    """The compiled and tested library, or the reason why there is none; found out once."""
    try:
        path = build_library(default_cache_directory() / "native")
        for dtype in DTYPES:
            _check(open_library(path, dtype), dtype)
    except NativeBuildError as error:
        logger.warning("no native kernels: %s", error)
        return str(error)
    return path


def _check(library: KernelLibrary, dtype: torch.dtype) -> None:
    """Compare a small gated MLP with PyTorch: a miscompiled library must not be used."""
    generator = torch.Generator().manual_seed(0)
    size, inner, rows = 4 * library.lanes, 40, 3
    norm = torch.ones(size, dtype=dtype)
    gate, up = (torch.randn(inner, size, generator=generator).to(dtype) for _ in range(2))
    down = torch.randn(size, inner, generator=generator).to(dtype)
    hidden = torch.randn(rows, size, generator=generator).to(dtype)
    gate_up = pack_gate_up(torch.cat([gate, up]), library.block_columns).contiguous()
    packed_down = pack_weight(down, library.block_columns).contiguous()
    arguments = MlpArguments(
        size, inner, 1e-5, norm.data_ptr(), gate_up.data_ptr(), packed_down.data_ptr()
    )
    out, workspace = torch.empty_like(hidden), library.create_workspace()
    address = ctypes.addressof(arguments)
    library.mlp(address, rows, 1, hidden.data_ptr(), out.data_ptr(), workspace)
    library.destroy_workspace(workspace)
    wide = functional.rms_norm(hidden.float(), (size,), eps=1e-5)
    gated = functional.silu(wide @ gate.float().T) * (wide @ up.float().T)
    expected = gated @ down.float().T
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-4
    error = (out.float() - expected).abs().max().item()
    if not error <= tolerance * expected.abs().max().item():
        raise NativeBuildError(f"the compiled kernels are wrong by {error} in {dtype}")
