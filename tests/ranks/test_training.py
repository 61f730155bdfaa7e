"""Training over ranks: averaged gradients, the same weights everywhere, ZeRO with equal losses."""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drafters.training.frozen_verifier import FrozenVerifier
from drafters.training.loop import train
from drafters.training.sharded_verifier import ShardedVerifier
from drafters.training.step_log import VALIDATION_LOG, read_log
from engine.models.registry import shard_decoder
from parallel.data_parallel import (
    BUCKET_ELEMENTS,
    DataParallel,
    average,
    broadcast_from_first,
    data_parallel_world,
    total,
)
from parallel.mesh import Mesh
from tests.support.distributed import run_ranks
from tests.support.engines import random_decoder
from tests.support.tiny import SMOLLM
from tests.support.toy_training import numbers, toy_config, toy_data, toy_run, toy_task

pytestmark = pytest.mark.ranks

needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="the package deepspeed is not installed"
)
ZERO = ["zero1", "zero2", "zero3"]


def collectives(mesh: Mesh) -> tuple[list[list[float]], float, list[float]]:
    """Rank r holds r everywhere; one tensor is larger than a bucket."""
    ranks = data_parallel_world()
    assert (ranks.rank, ranks.size) == (mesh.rank, 3)
    sizes = (3, BUCKET_ELEMENTS + 1, 2)
    tensors = [torch.full((size,), float(ranks.rank)) for size in sizes]
    average(tensors, ranks)
    sent = [torch.full((2,), float(ranks.rank + 7))]
    broadcast_from_first(sent, ranks)
    own = torch.tensor([float(ranks.rank)])
    summed = total(own, ranks)
    assert own.item() == ranks.rank, "the operand is left alone"
    return [sorted(set(tensor.tolist())) for tensor in tensors], summed.item(), sent[0].tolist()


def test_collectives_over_three_ranks() -> None:
    assert run_ranks(collectives, 3, 1) == [([[1.0]] * 3, 3.0, [7.0, 7.0])] * 3


def test_one_rank_needs_no_group() -> None:
    alone = data_parallel_world()
    assert alone == DataParallel.single()
    tensor = torch.tensor([2.0])
    average([tensor], alone)
    assert total(tensor, alone).item() == 2.0


def shared_states(mesh: Mesh) -> list[Tensor]:
    """Three passes of a verifier over the ranks, with other batches on each of them."""
    model = random_decoder(SMOLLM, dtype=torch.float64)
    shard_decoder(model, mesh)
    verifier = ShardedVerifier(model, mesh)
    found = []
    for turn in range(3):
        states = verifier.states(own_batch(mesh.rank, turn), (1, 2))
        found += [states.taps, states.final, verifier.logits(states.final[0])]
    return found


def own_batch(rank: int, turn: int) -> Tensor:
    """Token ids of a shape that no other rank has."""
    generator = torch.Generator().manual_seed(10 * rank + turn)
    return torch.randint(SMOLLM.vocab_size, (1 + rank, 5 + 2 * rank + turn), generator=generator)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_a_verifier_and_each_gets_the_states_of_its_own_batch(size: int) -> None:
    """Catches ranks that run each other's batches, and heads that know a part of the vocabulary."""
    everybody = run_ranks(shared_states, size, 1)
    alone = FrozenVerifier(random_decoder(SMOLLM, dtype=torch.float64))
    for rank, found in enumerate(everybody):
        for turn in range(3):
            states = alone.states(own_batch(rank, turn), (1, 2))
            expected = [states.taps, states.final, alone.logits(states.final[0])]
            for ours, theirs in zip(found[3 * turn : 3 * turn + 3], expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def trained(mesh: Mesh, folder: Path, backend: str, dtype: str) -> dict[str, Tensor]:
    """Train on the ranks of this grid, with other initial weights on every rank but the first."""
    os.environ["LOCAL_RANK"] = str(mesh.rank)  # DeepSpeed asks for it; torchrun sets it
    config = toy_config(backend=backend, dtype=dtype)
    ranks = data_parallel_world()
    result = toy_run(folder, config, ranks, dropout=0.0, noise=0.0, disturbance=mesh.rank)
    assert result.backend == backend
    return result.weights


def close(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=tolerance)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in numbers(folder)]


def test_two_ranks_equal_one_with_twice_the_accumulation(tmp_path: Path) -> None:
    """Catches gradients summed instead of averaged, and ranks that start apart or drift apart."""
    first, second = run_ranks(trained, 2, 1, tmp_path / "two", "torch", "float32")
    close(first, second, 0.0)
    alone = toy_run(tmp_path / "one", toy_config(gradient_accumulation=2), dropout=0.0, noise=0.0)
    close(first, alone.weights, 1e-5)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    one, two = (read_log(tmp_path / name / VALIDATION_LOG) for name in ("one", "two"))
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-4)


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("backend", ZERO)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_zero_has_the_losses_of_plain_torch(
    tmp_path: Path, backend: str, dtype: str, tolerance: float
) -> None:
    """bfloat16 gradients are rounded in another place, float32 ones are the same."""
    plain, _ = run_ranks(trained, 2, 1, tmp_path / "torch", "torch", dtype)
    first, second = run_ranks(trained, 2, 1, tmp_path / backend, backend, dtype)
    close(first, second, 0.0)
    close(first, plain, tolerance)
    assert losses(tmp_path / backend) == pytest.approx(losses(tmp_path / "torch"), rel=tolerance)


def refused(mesh: Mesh, folder: Path) -> str:
    """A module with a parameter that DeepSpeed cannot send."""
    os.environ["LOCAL_RANK"] = str(mesh.rank)
    task = toy_task()
    task.module.register_parameter("gain", torch.nn.Parameter(torch.tensor(1.0)))
    try:
        train(task, toy_data(), toy_config(backend="zero1"), folder, data_parallel_world())
    except ValueError as error:
        return str(error)
    return "accepted"


@needs_deepspeed
def test_what_deepspeed_cannot_do_is_one_sentence(tmp_path: Path) -> None:
    """DeepSpeed's own message speaks of views of bytes."""
    assert "parameter gain has no dimension" in run_ranks(refused, 1, 1, tmp_path)[0]


@needs_deepspeed
def test_the_table_that_keeps_deepspeed_from_compiling_is_still_there() -> None:
    """A version without it would compile for minutes, or fail where there is no compiler."""
    operators = importlib.import_module("deepspeed.ops").__compatible_ops__
    assert "deepspeed_shm_comm" in operators


def stopped_in_the_middle(mesh: Mesh, folder: Path, backend: str) -> str:
    """A run whose first rank meets an error in step eight, after a checkpoint at five."""
    os.environ["LOCAL_RANK"] = str(mesh.rank)
    try:
        toy_run(folder, toy_config(backend=backend), data_parallel_world(), fail_in_step=8)
    except FloatingPointError as error:
        return str(error)
    return "finished"


def continued(mesh: Mesh, folder: Path, backend: str) -> int:
    """The same run without the error."""
    os.environ["LOCAL_RANK"] = str(mesh.rank)
    torch.manual_seed(mesh.rank + 40)
    return toy_run(folder, toy_config(backend=backend), data_parallel_world()).steps


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["torch", *(pytest.param(b, marks=needs_deepspeed) for b in ZERO)]
)
def test_ranks_resume_bit_for_bit(tmp_path: Path, backend: str) -> None:
    """Every rank's share of the moments and its own dropout state come back."""
    errors = run_ranks(stopped_in_the_middle, 2, 1, tmp_path / "twice", backend)
    assert all("loss of step 8 is nan" in error for error in errors), errors
    assert [line["step"] for line in numbers(tmp_path / "twice")] == list(range(1, 8))
    assert run_ranks(continued, 2, 1, tmp_path / "twice", backend) == [12, 12]
    assert run_ranks(continued, 2, 1, tmp_path / "once", backend) == [12, 12]
    assert numbers(tmp_path / "twice") == numbers(tmp_path / "once")
