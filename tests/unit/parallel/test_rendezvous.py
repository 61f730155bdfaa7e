"""Ranks meet through a store on a port that the system picks."""

from __future__ import annotations

from datetime import timedelta

from parallel.rendezvous import (
    connect_store,
    destroy_process_group,
    init_process_group,
    start_store,
)

SHORT = timedelta(seconds=20)


def test_a_second_client_sees_the_stores_keys() -> None:
    store, address = start_store("127.0.0.1", timeout=SHORT)
    assert address.port != 0
    store.set("greeting", "hello")
    assert connect_store(address, timeout=SHORT).get("greeting") == b"hello"


def test_each_epoch_meets_anew_in_the_same_store() -> None:
    """A rebuilt gang must not read the keys of the dead one."""
    store, _ = start_store("127.0.0.1", timeout=SHORT)
    for epoch in range(2):
        init_process_group(store, rank=0, world_size=1, epoch=epoch, timeout=SHORT)
        destroy_process_group()
    destroy_process_group()
