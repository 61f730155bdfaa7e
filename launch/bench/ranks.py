"""This process's place among the ranks that torchrun started, or alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from parallel.mesh import Mesh, build_mesh
from parallel.rendezvous import destroy_process_group, init_from_torchrun


def launched_world_size() -> int:
    """Processes torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launched_rank() -> int:
    """This process's number; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def joined_mesh(tp_size: int, num_stages: int) -> Iterator[Mesh]:
    """The mesh of the launched processes; its groups are left after a clean run."""
    if launched_world_size() > 1:
        init_from_torchrun()
    yield build_mesh(tp_size, num_stages)
    destroy_process_group()


def process_ids() -> tuple[int, ...]:
    """This process first, then the other ranks on this machine; collective over all ranks."""
    if not dist.is_initialized():
        return (os.getpid(),)
    everybody: list[tuple[str, int]] = [("", 0)] * dist.get_world_size()
    dist.all_gather_object(everybody, (socket.gethostname(), os.getpid()))
    here = [pid for host, pid in everybody if host == socket.gethostname()]
    return (os.getpid(), *(pid for pid in here if pid != os.getpid()))
