"""The replica deployment: one engine behind a Serve handle.

Tokens leave it as groups of events, all that are ready at a time, so that a slow reader costs few
messages. A request that is refused, or that it cannot go on with, ends with a record that says so:
an exception would fill Serve's log with tracebacks of what is expected.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from engine.counters import EngineCounters
from engine.records import Request, TokenEvent
from ray_app.config import ServerConfig
from ray_app.drafter_actor import DrafterVitals
from ray_app.engine_client import EngineUnavailableError
from ray_app.supervisor import Status, Supervisor
from ray_app.verifier_actor import RankPlace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """What the ingress wants to know now and then."""

    pid: int
    """The replica's process."""
    status: Status
    counters: EngineCounters
    num_requests: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The engine cannot serve the request: its sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Interruption:
    """The engine is lost; the request may be handed in again."""

    reason: str


class EngineReplica:
    """One engine; its process is Serve's to restart, its ranks are its own to rebuild."""

    def __init__(self, config: ServerConfig) -> None:
        self._supervisor = Supervisor(config)
        self._supervisor.begin()

    async def generate(
        self, request: Request, *, is_patient: bool
    ) -> AsyncGenerator[tuple[TokenEvent, ...] | Refusal | Interruption]:
        """Events in groups; the first, empty one says that the request is accepted.

        A patient request waits for an engine that is still starting.
        """
        try:
            source = await self._supervisor.source(is_patient=is_patient)
            stream = await source.submit(request)
            async with aclosing(stream):
                yield ()
                async for event in stream:
                    yield (event, *stream.ready())
        except ValueError as error:
            yield Refusal(str(error))
        except EngineUnavailableError as error:
            yield Interruption(str(error))

    async def status(self) -> Status:
        """The engine's state now."""
        return self._supervisor.status

    async def report(self) -> ReplicaReport:
        """State, counters and load."""
        supervisor = self._supervisor
        return ReplicaReport(
            pid=os.getpid(),
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
