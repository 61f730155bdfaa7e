"""Run a function on every rank of a TP x PP grid: gloo processes from a fork server, met in a file.

Fork server with torch preloaded: a rank starts in a fraction of a second instead of importing torch
again, and, unlike a plain fork, inherits no threads. A file store needs no port. The first rank
that fails ends the run, and its own traceback is what the test shows.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import FileStore

from parallel.collectives import barrier
from parallel.mesh import build_mesh
from parallel.rendezvous import destroy_process_group, init_process_group

_PRELOADED = ["pytest", "torch.distributed", "tests.support.tiny", "drafters.assemble"]
"""Imported once by the fork server; a name that does not exist is skipped."""


def run_ranks(
    fn: Callable[..., Any], tp: int, pp: int, *args: Any, timeout: float = 120.0
) -> list[Any]:
    """``fn(mesh, *args)`` on every rank of the grid; returns the picklable results in rank order.

    ``fn`` must be a module-level function. Each rank has one thread.

    Raises:
        AssertionError: a rank failed, with its traceback, or ``timeout`` seconds have passed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    payload = pickle.dumps((fn, args))
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        ranks = []
        for rank in range(tp * pp):
            receiver, sender = context.Pipe(duplex=False)
            seat = _Seat(rank=rank, tp=tp, pp=pp, folder=folder, timeout=timeout)
            process = context.Process(target=_run_rank, args=(seat, payload, sender), daemon=True)
            process.start()
            sender.close()
            ranks.append((process, receiver))
        try:
            return _collect([receiver for _, receiver in ranks], timeout)
        finally:
            _end([process for process, _ in ranks])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """What a rank's process is told about its place."""

    rank: int
    tp: int
    pp: int
    folder: str
    timeout: float


def _run_rank(seat: _Seat, payload: bytes, sender: Connection) -> None:
    """The body of one process: results and errors go back as plain bytes."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    try:
        fn, args = pickle.loads(payload)
        size = seat.tp * seat.pp
        store = FileStore(str(Path(seat.folder) / "store"), size)
        limit = timedelta(seconds=seat.timeout)
        init_process_group(store, rank=seat.rank, world_size=size, timeout=limit)
        mesh = build_mesh(seat.tp, seat.pp, timeout=limit)
        result = pickle.dumps((None, fn(mesh, *args)))
        barrier(mesh)
    except BaseException:  # noqa: BLE001
        sender.send_bytes(pickle.dumps((traceback.format_exc(), None)))
        raise SystemExit(1) from None
    sender.send_bytes(result)
    destroy_process_group()


def _collect(receivers: list[Connection], timeout: float) -> list[Any]:
    deadline = time.monotonic() + timeout
    results: dict[int, Any] = {}
    while len(results) < len(receivers):
        waiting = [receiver for rank, receiver in enumerate(receivers) if rank not in results]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        missing = [rank for rank in range(len(receivers)) if rank not in results]
        assert ready, f"ranks {missing} of {len(receivers)} gave no answer in {timeout} s"
        for receiver in ready:
            rank = receivers.index(receiver)  # type: ignore[arg-type]
            results[rank] = _receive(rank, receivers[rank])
    return [results[rank] for rank in range(len(receivers))]


def _receive(rank: int, receiver: Connection) -> Any:
    try:
        error, value = pickle.loads(receiver.recv_bytes())
    except EOFError:
        raise AssertionError(f"rank {rank} died without a word") from None
    if error is not None:
        raise AssertionError(f"rank {rank} failed:\n{error}")
    return value


def _end(processes: list[BaseProcess]) -> None:
    """Let ranks that have answered leave, then end whoever is left."""
    for process in processes:
        process.join(timeout=1.0 if process.exitcode is None else 0.0)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
