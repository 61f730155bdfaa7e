"""One verifier rank as a Ray actor: a mesh, an engine and one long call, the SPMD loop.

Two phases, as in vLLM's Ray executor: the constructor does nothing heavy, so that a gang is placed
before anything is loaded; then :meth:`prepare` joins the process group and builds the engine on all
ranks together. The result of :meth:`run` is the rank's sentinel: when that call ends, so has the
rank.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import timedelta

import ray
from torch._C._distributed_c10d import Store

from drafters.assemble import assemble_engine
from engine.config import EngineConfig
from engine.engine import SpeculativeEngine
from parallel.mesh import build_mesh
from parallel.rendezvous import (
    StoreAddress,
    connect_store,
    destroy_process_group,
    init_process_group,
    start_store,
)
from ray_app.coordinator_link import CoordinatorLink, LinkAddress
from ray_app.drafter_link import DrafterDirectory
from ray_app.serving_loop import IDLE_SECONDS, ServingLoop
from ray_app.watchdog import Watchdog

PEER_TIMEOUT = timedelta(minutes=2)
"""How long a rank waits for a message of its peers, who show signs of life far more often."""

SERVER_SECONDS = 60.0
"""How long the coordinator waits for the server's connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank runs."""

    node_id: str
    pid: int


class VerifierRank:
    """One rank; every call but :meth:`run` returns soon."""

    def __init__(self, rank: int, config: EngineConfig, *, watchdog_seconds: float) -> None:
        self._rank, self._config = rank, config
        self._watchdog_seconds = watchdog_seconds
        self._store: Store | None = None
        self._engine: SpeculativeEngine | None = None
        self._link: CoordinatorLink | None = None
        self._drafters = DrafterDirectory()
        logging.basicConfig(format=f"rank {rank}: %(levelname)s %(name)s: %(message)s")

    def place(self) -> RankPlace:
        """The node and process of this rank."""
        return RankPlace(node_id=ray.get_runtime_context().get_node_id(), pid=os.getpid())

    def open_store(self) -> StoreAddress:
        """Rank 0: open the rendezvous store; it lives as long as this actor."""
        self._store, address = start_store(ray.util.get_node_ip_address(), timeout=PEER_TIMEOUT)
        return address

    def prepare(self, address: StoreAddress) -> None:
        """Join the process group and build this rank's engine; returns when it could run.

        Raises:
            ValueError: the configuration does not fit the model; one sentence.
        """
        if self._store is None:
            self._store = connect_store(address, timeout=PEER_TIMEOUT)
        config = self._config
        if config.num_ranks > 1:
            init_process_group(
                self._store, rank=self._rank, world_size=config.num_ranks, timeout=PEER_TIMEOUT
            )
        mesh = build_mesh(
            config.tensor_parallel_size, config.pipeline_parallel_size, timeout=PEER_TIMEOUT
        )
        self._engine = assemble_engine(config, mesh, connect_drafter=self._drafters.connect)

    def open_link(self, token: str) -> LinkAddress:
        """Coordinator: open the private socket; the server must present ``token``."""
        self._link = CoordinatorLink(ray.util.get_node_ip_address(), token)
        return self._link.address

    def run(self) -> None:
        """The SPMD loop: the coordinator serves, the others follow; returns after a clean stop."""
        assert self._engine is not None, "prepare first"
        if self._engine.is_coordinator:
            assert self._link is not None, "open the link first"
            self._link.accept(SERVER_SECONDS)
            loop = ServingLoop(
                self._engine,
                self._link,
                idle_seconds=IDLE_SECONDS,
                on_drafter=self._drafters.announce,
                watchdog=Watchdog(self._watchdog_seconds),
            )
            loop.run()
            self._link.close()
        else:
            self._engine.follow()
        destroy_process_group()
