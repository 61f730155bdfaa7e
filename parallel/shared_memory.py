"""All-gather of a few rows between processes of one machine, through memory they share.

A tensor-parallel step on a CPU gathers two small blocks per layer; over sockets each gather costs
about 0.4 ms, most of it wake-ups, and outweighs the layer. Here every rank writes its block into
its own slot and then raises its counter; a gather is done when all counters are raised. Two slots
alternate: a rank that writes gather n + 2 has seen everyone start n + 1, so everyone has copied n.

Plain stores suffice because x86-64 keeps the order of stores; other machines keep the sockets. A
rank holds a lock on its own byte of the file as long as it lives, so the others notice its death.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import tempfile
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

SLOT_BYTES = 1 << 20
"""Largest block that is gathered through shared memory."""

_FOLDER = Path("/dev/shm")
_LINE = 64
"""Bytes between two counters: a cache line each."""
_SPINS = 2_000
"""Polls before the core is offered to others; a peer is usually there much earlier."""
_CHECK_SECONDS = 0.1
"""Time between two looks at whether the peers still live."""


class PeerDiedError(RuntimeError):
    """A rank of the group ended while others waited for it."""


class SharedMemoryGather:
    """One rank's view of the group's shared file; made by :func:`share_memory`."""

    def __init__(self, fd: int, rank: int, size: int, timeout: timedelta) -> None:
        """Map the file and take this rank's lock; the file descriptor is ours from now on."""
        self._fd, self._rank, self._size = fd, rank, size
        self._seconds = timeout.total_seconds()
        self._memory = mmap.mmap(fd, _file_bytes(size))
        self._counters = memoryview(self._memory)[: _LINE * size].cast("Q")
        flat = torch.frombuffer(self._memory, dtype=torch.uint8, offset=_LINE * size)
        self._slots = flat.view(2, size, SLOT_BYTES)
        self._sequence = 0
        weakref.finalize(self, os.close, fd)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    def fits(self, tensor: Tensor) -> bool:
        """Whether the tensor fits a slot; the same on all ranks, whose tensors have one shape."""
        return tensor.nbytes <= SLOT_BYTES

    def gather(self, tensor: Tensor) -> Tensor:
        """[P, ...]: every rank's tensor, in rank order; collective.

        Raises:
            PeerDiedError: a rank is gone.
            TimeoutError: a rank lives but did not come in time.
        """
        self._sequence += 1
        slots = self._slots[self._sequence & 1, :, : tensor.nbytes]
        blocks = slots.view(tensor.dtype).view(self._size, *tensor.shape)
        blocks[self._rank].copy_(tensor)
        self._counters[self._rank * _LINE // 8] = self._sequence
        for rank in range(self._size):
            self._wait_for(rank)
        return blocks.clone()

    def _wait_for(self, rank: int) -> None:
        counters, place, wanted = self._counters, rank * _LINE // 8, self._sequence
        for _ in range(_SPINS):
            if counters[place] >= wanted:
                return
        deadline = time.monotonic() + self._seconds
        next_check = time.monotonic() + _CHECK_SECONDS
        while counters[place] < wanted:
            os.sched_yield()
            now = time.monotonic()
            if now > next_check:
                self._check(rank, late=now > deadline)
                next_check = now + _CHECK_SECONDS

    def _check(self, rank: int, *, late: bool) -> None:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            if late:
                raise TimeoutError(
                    f"tensor-parallel rank {rank} did not answer within {self._seconds:.0f} s"
                ) from None
            return
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, rank)
        raise PeerDiedError(f"tensor-parallel rank {rank} died")


def share_memory(group: ProcessGroup, *, timeout: timedelta) -> SharedMemoryGather | None:
    """Shared memory of the group's ranks; None on every rank unless all can have it. Collective.

    The file loses its name as soon as everybody has opened it, so nothing is left behind however
    the ranks end.
    """
    rank, size = group.rank(), group.size()
    path = _create(size) if rank == 0 and _is_supported() else None
    names: list[str | None] = [None] * size
    dist.all_gather_object(names, str(path) if path else None, group=group)
    shared = _attach(names[0], lambda fd: SharedMemoryGather(fd, rank, size, timeout))
    answers: list[bool | None] = [None] * size
    dist.all_gather_object(answers, shared is not None, group=group)
    if path is not None:
        path.unlink()
    return shared if all(answers) else None


def _is_supported() -> bool:
    return platform.system() == "Linux" and platform.machine() == "x86_64" and _FOLDER.is_dir()


def _file_bytes(size: int) -> int:
    return size * (_LINE + 2 * SLOT_BYTES)


def _create(size: int) -> Path | None:
    """A file of zeros with its memory reserved, or None where there is no room."""
    path: Path | None = None
    try:
        fd, name = tempfile.mkstemp(prefix="switchsteer-", dir=_FOLDER)
        path = Path(name)
        try:
            os.posix_fallocate(fd, 0, _file_bytes(size))
        finally:
            os.close(fd)
    except OSError:
        if path is not None:
            path.unlink()
        return None
    return path


def _attach(
    name: str | None, make: Callable[[int], SharedMemoryGather]
) -> SharedMemoryGather | None:
    """Open the file that rank 0 made; None when it is not on this machine."""
    if name is None:
        return None
    try:
        return make(os.open(name, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return None
