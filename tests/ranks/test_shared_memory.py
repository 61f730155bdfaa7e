"""Gathering through shared memory gives the group's tensors and is calm when a rank is gone."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from parallel import shared_memory
from parallel.collectives import all_reduce, barrier
from parallel.mesh import Mesh
from parallel.shared_memory import SLOT_BYTES, PeerDiedError, share_memory
from tests.support.distributed import run_ranks

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm"),
]


def compare(mesh: Mesh) -> int:
    """Sums of many shapes and dtypes with and without shared memory, ranks out of step."""
    assert mesh.shared_memory is not None
    sockets = replace(mesh, shared_memory=None)
    generator = torch.Generator().manual_seed(mesh.tp_rank)
    for turn in range(300):
        dtype = (torch.float64, torch.float32, torch.bfloat16)[turn % 3]
        rows = torch.randn(1 + turn % 7, 1 + turn % 65, generator=generator).to(dtype)
        if turn % 50 == 10 * mesh.tp_rank:
            time.sleep(0.01)
        first, second = all_reduce(rows, mesh), all_reduce(rows + 1, mesh)
        assert torch.equal(first, all_reduce(rows, sockets)), turn
        assert torch.equal(second, all_reduce(rows + 1, sockets)), turn
    strided = torch.randn(6, 4, generator=generator).T
    assert torch.equal(all_reduce(strided, mesh), all_reduce(strided, sockets))
    large = torch.randn(SLOT_BYTES // 4 + 1, generator=generator)
    assert torch.equal(all_reduce(large, mesh), all_reduce(large, sockets))
    return len(list(Path("/dev/shm").glob("switchsteer-*")))


@pytest.mark.parametrize("grid", [(2, 1), (3, 1), (2, 2)])
def test_sums_equal_those_through_the_group_and_no_file_is_left(grid: tuple[int, int]) -> None:
    assert set(run_ranks(compare, *grid)) == {0}


def outlive(mesh: Mesh, how: str) -> str:
    """Rank 1 goes away in the middle; the others say what they noticed."""
    assert mesh.tp_group is not None
    shared = share_memory(mesh.tp_group, timeout=timedelta(seconds=1))
    assert shared is not None
    shared.gather(torch.ones(3))
    pids = [0] * mesh.tp_size
    torch.distributed.all_gather_object(pids, os.getpid(), group=mesh.tp_group)
    barrier(mesh)
    if mesh.tp_rank == 1:
        # Alive but silent, until rank 0 has seen it so.
        time.sleep(60 if how == "dies" else 2)
        return ""
    if how == "dies":
        os.kill(pids[1], signal.SIGKILL)
    try:
        shared.gather(torch.ones(3))
    except (PeerDiedError, TimeoutError) as error:
        return str(error)
    return "nothing"


def test_a_silent_rank_is_reported_after_the_timeout() -> None:
    assert run_ranks(outlive, 2, 1, "is silent")[0] == (
        "tensor-parallel rank 1 did not answer within 1 s"
    )


def report_death(mesh: Mesh, folder: str) -> None:
    """The survivor writes what it noticed, because the run itself counts as failed."""
    said = outlive(mesh, "dies")
    (Path(folder) / "said").write_text(said)


def test_a_killed_rank_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="rank 1 died without a word"):
        run_ranks(report_death, 2, 1, str(tmp_path))
    assert (tmp_path / "said").read_text() == "tensor-parallel rank 1 died"


def refuse(mesh: Mesh) -> bool:
    """One rank that cannot reach the file turns shared memory off for all."""
    assert mesh.tp_group is not None
    if mesh.tp_rank == 1:
        shared_memory._attach = lambda *_: None
    return share_memory(mesh.tp_group, timeout=timedelta(seconds=1)) is None


def test_ranks_on_different_machines_keep_the_sockets() -> None:
    assert run_ranks(refuse, 3, 1) == [True, True, True]
