"""How the ranks find each other: a store in rank 0's process, on a port the system picks.

Whoever starts the ranks (Ray, a test, torchrun) carries rank 0's address to the others. The port is
never chosen in advance, so nothing can be "already in use"; each rebuild of a gang uses a new
epoch, so keys left by dead ranks are never read.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

DEFAULT_TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for its peers before it fails; serving passes a shorter one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Where rank 0's store listens."""

    host: str
    port: int


def start_store(host: str, *, timeout: timedelta = DEFAULT_TIMEOUT) -> tuple[Store, StoreAddress]:
    """Open the store in this process; keep the returned object alive as long as the ranks run."""
    store = TCPStore(
        host, 0, is_master=True, wait_for_workers=False, multi_tenant=True, timeout=timeout
    )
    return store, StoreAddress(host=host, port=store.port)


def connect_store(address: StoreAddress, *, timeout: timedelta = DEFAULT_TIMEOUT) -> Store:
    """Reach the store of rank 0 from another process."""
    return TCPStore(
        address.host, address.port, is_master=False, wait_for_workers=False, timeout=timeout
    )


def init_process_group(
    store: Store,
    *,
    rank: int,
    world_size: int,
    epoch: int = 0,
    backend: str = "gloo",
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> None:
    """Join the default process group of this epoch; returns when every rank has joined."""
    dist.init_process_group(
        backend,
        store=PrefixStore(f"epoch{epoch}", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )


def init_from_torchrun(*, backend: str = "gloo", timeout: timedelta = DEFAULT_TIMEOUT) -> None:
    """Join the default process group that torchrun describes in the environment."""
    dist.init_process_group(backend, init_method="env://", timeout=timeout)


def destroy_process_group() -> None:
    """Leave the default process group, if there is one; collective, so only after a clean run.

    Groups that only a reference cycle still holds are freed here: one that lives until the
    interpreter ends may abort the process, because gloo's threads let go of tensors then.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()
