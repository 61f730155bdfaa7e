"""The processes of a training: data-parallel ranks that may share one tensor-parallel verifier."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch

from drafters.training.frozen_verifier import FrozenVerifier, RememberingVerifier
from drafters.training.sharded_verifier import ShardedVerifier
from engine.config import EngineConfig
from engine.weights import load_model
from parallel.data_parallel import DataParallel, data_parallel_world
from parallel.mesh import Mesh, build_mesh
from parallel.rendezvous import destroy_process_group, init_from_torchrun

_PATIENCE = timedelta(days=2)
"""How long ranks wait for the one that makes the answers; torchrun ends them all if it dies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRanks:
    """This process's place in both roles."""

    data_parallel: DataParallel
    verifier: Mesh
    """A grid of one where every rank has a verifier of its own."""

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and reports."""
        return self.data_parallel.is_first


@contextmanager
def training_ranks(tensor_parallel_size: int) -> Iterator[TrainingRanks]:
    """The ranks of torchrun, or this process alone; ``check_tensor_parallel`` comes before."""
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if under_torchrun:
        init_from_torchrun(timeout=_PATIENCE)
    shared = tensor_parallel_size > 1
    yield TrainingRanks(
        data_parallel=data_parallel_world(),
        verifier=build_mesh(tensor_parallel_size, 1) if shared else Mesh.single(),
    )
    if under_torchrun:
        destroy_process_group()


def check_tensor_parallel(tensor_parallel_size: int) -> None:
    """Refuse early what ``training_ranks`` cannot do.

    Raises:
        ValueError: the verifier is to be shared by some of the ranks only.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if tensor_parallel_size not in (1, world_size):
        allowed = "1" if world_size == 1 else f"1 or all {world_size} processes"
        raise ValueError(
            f"--tensor-parallel-size must be {allowed}, not {tensor_parallel_size}: the verifier "
            "is whole on every process, or shared by all that torchrun starts."
        )


def frozen_verifier(engine: EngineConfig, ranks: TrainingRanks) -> FrozenVerifier:
    """The verifier to learn from; collective over the ranks that share it."""
    model = load_model(
        engine.model,
        dtype=getattr(torch, engine.dtype),
        mesh=ranks.verifier,
        max_model_len=engine.max_model_len,
    )
    if ranks.verifier.world_size == 1:
        return RememberingVerifier(model)
    return ShardedVerifier(model, ranks.verifier)
