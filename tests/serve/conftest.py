"""One local Ray cluster for all tests of this folder, and the model they serve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.speculation import speculation
from ray_app.cluster import ClusterChoice, connect, disconnect
from tests.support.tiny import LLAMA33, write_checkpoint

MAX_MODEL_LEN = 2048


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """More CPUs than the machine has: the ranks of two engines may overlap for a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        connect(ClusterChoice(num_cpus=4))
        yield
        disconnect()


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama."""
    config = replace(LLAMA33, max_position_embeddings=MAX_MODEL_LEN)
    return write_checkpoint(tmp_path_factory.mktemp("served"), config)


@pytest.fixture(scope="session")
def engine_config(model_directory: Path) -> EngineConfig:
    """Two tensor-parallel ranks."""
    return EngineConfig(
        model=str(model_directory),
        dtype="float32",
        kernels="torch",
        tensor_parallel_size=2,
        max_model_len=MAX_MODEL_LEN,
        num_threads=1,
        speculation=speculation("copy_spec"),
    )
