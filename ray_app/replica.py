"""The replica deployment: one engine behind a Serve handle.

Tokens leave it as groups of events, all that are ready at a time, so that a slow reader costs few
messages. Requests that it cannot go on with fail with ``EngineUnavailableError``; the ingress hands
them in again, here or elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from engine.counters import EngineCounters
from engine.records import Request, TokenEvent
from ray_app.config import ServerConfig
from ray_app.drafter_actor import DrafterVitals
from ray_app.supervisor import Status, Supervisor
from ray_app.verifier_actor import RankPlace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """What the ingress wants to know now and then."""

    replica_id: str
    status: Status
    counters: EngineCounters
    num_requests: int


class EngineReplica:
    """One engine; its process is Serve's to restart, its ranks are its own to rebuild."""

    def __init__(self, config: ServerConfig) -> None:
        self._supervisor = Supervisor(config)
        self._supervisor.begin()

    async def generate(self, request: Request) -> AsyncGenerator[tuple[TokenEvent, ...]]:
        """Events in groups; the first, empty one says that the request is accepted."""
        source = await self._supervisor.source()
        stream = await source.submit(request)
        async with aclosing(stream):
            yield ()
            async for event in stream:
                yield (event, *stream.ready())

    async def status(self) -> Status:
        """The engine's state now."""
        return self._supervisor.status

    async def report(self, replica_id: str = "") -> ReplicaReport:
        """State, counters and load."""
        supervisor = self._supervisor
        return ReplicaReport(
            replica_id=replica_id,
            status=supervisor.status,
            counters=supervisor.counters,
            num_requests=supervisor.num_requests,
        )

    async def places(self) -> tuple[RankPlace, ...]:
        """Node and process of every rank."""
        return self._supervisor.places

    async def drafter(self) -> DrafterVitals | None:
        """The drafter's newest sign of life."""
        return self._supervisor.drafter

    async def num_requests(self) -> int:
        """Requests that the engine works on or queues."""
        return self._supervisor.num_requests

    async def check_health(self) -> None:
        """Serve replaces a replica whose engine was lost for good after it could serve.

        One that never could stays, so that its reason can be read.
        """
        status = self._supervisor.status
        if status.state == "failed" and self._supervisor.was_ready:
            raise RuntimeError(status.detail)

    async def stop(self) -> None:
        """Drain and end every rank."""
        await self._supervisor.stop()

    async def __del__(self) -> None:
        await self._supervisor.stop()
