"""Building, loading and installing the native kernels, and the widths of other machines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.kernels import install_kernels
from engine.models.config import ModelConfig
from engine.native import availability, native_available, nativize, unsupported_reason
from engine.native.build import NativeBuildError, build_library
from engine.native.install import install_library
from engine.native.library import open_library
from engine.native.packing import pack_gate_up, pack_weight, packed_bytes, unpack_weight
from tests.support.engines import random_decoder
from tests.unit.engine.native.test_kernels import (
    LLAMA,
    TOLERANCES,
    filled_cache,
    mixed_rows,
    run,
)

needs_kernels = pytest.mark.skipif(
    not native_available(), reason="the native kernels cannot be built here"
)


@pytest.fixture
def forgotten_library() -> Iterator[None]:
    """Lets a test find the library anew, and the tests after it too."""
    availability._find_library.cache_clear()
    yield
    availability._find_library.cache_clear()


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize("lanes", [4, 16])
def test_other_vector_widths_give_the_same_numbers(lanes: int, tmp_path: Path) -> None:
    """NEON's and AVX-512's tiles, transposes and key blocks, without their instructions."""
    path = build_library(tmp_path, defines=(f"-DNATIVE_LANES={lanes}",))
    for dtype in TOLERANCES:
        library = open_library(path, dtype)
        assert library.lanes == lanes
        expected = run(random_decoder(LLAMA, dtype=dtype), filled_cache(LLAMA, dtype), mixed_rows())
        model = random_decoder(LLAMA, dtype=dtype)
        install_library(model, library)
        found = run(model, filled_cache(LLAMA, dtype), mixed_rows())
        scale = expected[:, :-3].abs().max()
        error = (found[:, :-3] - expected[:, :-3]).abs().max() / scale
        assert error < TOLERANCES[dtype]


def test_a_failing_compiler_is_one_clear_error(tmp_path: Path) -> None:
    """Its first line is what a user needs; a half-built library must not stay behind."""
    with pytest.raises(NativeBuildError, match="failed: "):
        build_library(tmp_path, compiler="false")
    assert list(tmp_path.iterdir()) == []


@needs_kernels
def test_a_build_is_reused(tmp_path: Path) -> None:
    """Compiling takes seconds; every process of a cluster starts by asking."""
    first = build_library(tmp_path)
    stamp = first.stat().st_mtime_ns
    assert build_library(tmp_path) == first
    assert first.stat().st_mtime_ns == stamp
    assert list(tmp_path.iterdir()) == [first]


@needs_kernels
def test_another_flag_is_another_library(tmp_path: Path) -> None:
    """A library of another width under the same name would be loaded silently."""
    assert build_library(tmp_path) != build_library(tmp_path, defines=("-DNATIVE_LANES=8",))


def test_a_file_that_is_no_library_is_one_clear_error(tmp_path: Path) -> None:
    """A damaged cache must disable the kernels, not crash the process."""
    path = tmp_path / "kernels.so"
    path.write_bytes(b"not a library")
    with pytest.raises(NativeBuildError, match="do not load"):
        open_library(path, torch.float32)


@pytest.mark.usefixtures("forgotten_library")
def test_without_kernels_auto_falls_back_and_native_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No compiler on a machine: still an engine, and one warning about the cause."""

    def fail(*_: object, **__: object) -> Path:
        raise NativeBuildError("there is no compiler named 'g++'")

    monkeypatch.setattr(availability, "build_library", fail)
    with caplog.at_level(logging.WARNING, logger="engine.native.availability"):
        assert not native_available()
        assert not native_available()
    assert len(caplog.records) == 1
    model = random_decoder(LLAMA, dtype=torch.float32)
    assert unsupported_reason(model) == "there is no compiler named 'g++'"
    with pytest.raises(ValueError, match="no compiler"):
        install_kernels(model, "native")
    assert not install_kernels(model, "auto")


@needs_kernels
@pytest.mark.usefixtures("forgotten_library")
def test_a_wrong_result_disables_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self check at load: here the weights are packed wrongly, as a miscompilation would."""
    monkeypatch.setattr(
        availability, "pack_weight", lambda weight, columns: pack_weight(weight.flip(0), columns)
    )
    assert not native_available()
    assert "wrong" in (availability.unavailable_reason() or "")


@needs_kernels
@pytest.mark.parametrize(
    ("config", "name"),
    [(replace(LLAMA, hidden_size=90), "hidden_size"), (replace(LLAMA, head_dim=12), "head_dim")],
)
def test_sizes_that_do_not_fit_leave_the_model_as_it_was(config: ModelConfig, name: str) -> None:
    """Auto then takes packed layers; a half-replaced model would be useless."""
    model = random_decoder(config, dtype=torch.float32)
    before = list(model.modules())
    with pytest.raises(ValueError, match=name):
        nativize(model)
    assert list(model.modules()) == before


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("shape", [(48, 10), (50, 7), (1, 1)])
def test_unpacking_undoes_packing(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Columns and inner size are padded with zeros; whole logits come from unpacked weights."""
    weight = torch.randn(shape).to(dtype)
    packed = pack_weight(weight, 24)
    assert packed.numel() * packed.element_size() <= packed_bytes(shape, dtype.itemsize, 24)
    assert torch.equal(unpack_weight(packed, shape), weight)


def test_gate_and_up_blocks_alternate() -> None:
    """One thread must get both factors of a product."""
    packed = pack_gate_up(torch.arange(96.0).view(96, 1), 24)
    assert packed[0, 0, 0, 0, 0] == 0
    assert packed[0, 1, 0, 0, 0] == 48
    assert packed[1, 0, 0, 0, 0] == 24
