"""The ingress deployment: OpenAI's API over HTTP, and the journal of every request in flight.

It loads the tokenizer and nothing else of the model. Ray's errors end here: a replica that is gone
is an ``EngineUnavailableError`` to everything behind this file.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import FastAPI
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from engine.counters import EngineCounters
from engine.records import Request, TokenEvent
from engine.tokenizer import load_tokenizer
from engine.weights import resolve_model
from ray_app.app import build_app
from ray_app.config import ServerConfig
from ray_app.drafter_actor import DrafterVitals
from ray_app.engine_client import EngineUnavailableError, ServerStoppingError
from ray_app.exporters import Exporter, TimedSource
from ray_app.generation import TokenSource
from ray_app.generation_defaults import generation_defaults
from ray_app.journal import Journal, JournalCounters
from ray_app.logs import configure_logs
from ray_app.replica import Interruption, Refusal, ReplicaReport
from ray_app.request_options import ServedModel
from ray_app.supervisor import DRAIN_SECONDS, Status
from ray_app.tracing import tracer_for
from ray_app.verifier_actor import RankPlace

logger = logging.getLogger(__name__)

REPORT_SECONDS = 1.0
"""How old counters may be when they are shown."""
ASKED_PER_REPLICA = 3
"""Times that reports are asked for per replica; whom a handle asks is left to chance."""
FORGOTTEN_SECONDS = 60.0
"""After so long a replica that was not reached counts as gone."""
STATUS_SECONDS = 5.0
"""How long a replica may take to say how it is."""


class Ingress:
    """Implements ``app.Backend``; every method but the routes' is for the launcher and tests."""

    def __init__(self, replica: DeploymentHandle[Any], config: ServerConfig) -> None:
        self._config = config
        configure_logs(config.log_format)
        # Tokens go straight from process to process (gRPC): half the time of the object store.
        self._replica = replica.options(_by_reference=False)
        self._journal = Journal(self._generate, max_requests=config.max_requests)
        self._counters = EngineCounters()
        self._reports: dict[int, tuple[float, EngineCounters]] = {}
        self._reported = 0.0
        self._is_stopping = False
        self._model = self._load_model()
        self._exporter = Exporter(
            config.served_model_name, lambda: (self._counters, self._journal.counters)
        )
        tracer = tracer_for(config.otlp_traces_endpoint, config.served_model_name)
        self._source = TimedSource(self._journal, self._exporter, tracer)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_app(self, self._config)

    def _load_model(self) -> ServedModel:
        config = self._config
        directory = resolve_model(config.engine.model)
        return ServedModel(
            name=config.served_model_name,
            tokenizer=load_tokenizer(directory),
            max_model_len=config.engine.max_model_len,
            created=int(time.time()),
            speculation=config.engine.speculation,
            **generation_defaults(directory),
        )

    @property
    def model(self) -> ServedModel:
        """The served model."""
        return self._model

    @property
    def source(self) -> TokenSource:
        """Where tokens come from.

        Raises:
            ServerStoppingError: the server takes no requests any more.
        """
        if self._is_stopping:
            raise ServerStoppingError("the server is stopping")
        return self._source

    async def status(self) -> Status:
        """How the best replica is; red when none answers in time."""
        if self._is_stopping:
            return Status(state="stopped", detail="the server is stopping")
        try:
            async with asyncio.timeout(STATUS_SECONDS):
                for _ in range(self._num_asked):
                    found: Status = await self._replica.status.remote()
                    if found.state == "ready":
                        break
        except (TimeoutError, RayError, RayServeException) as error:
            detail = f"no replica answers: {type(error).__name__}"
            return Status(state="rebuilding", detail=detail)
        return found

    @property
    def _num_asked(self) -> int:
        """Times that replicas are asked until each has probably answered."""
        size = self._config.data_parallel_size
        return 1 if size == 1 else ASKED_PER_REPLICA * size

    async def metrics_text(self) -> str:
        """The page that Prometheus scrapes."""
        if time.monotonic() - self._reported > REPORT_SECONDS:
            try:
                async with asyncio.timeout(STATUS_SECONDS):
                    await self._collect_reports()
                self._reported = time.monotonic()
            except (TimeoutError, RayError, RayServeException):
                logger.warning("no replica reports its counters")
        return self._exporter.text()

    async def _collect_reports(self) -> None:
        """The newest of every replica."""
        now = time.monotonic()
        for _ in range(self._num_asked):
            report = await self.report()
            self._reports[report.pid] = (now, report.counters)
        fresh = {p: r for p, r in self._reports.items() if now - r[0] < FORGOTTEN_SECONDS}
        newest = sorted(fresh.items(), key=lambda item: -item[1][0])
        self._reports = dict(newest[: self._config.data_parallel_size])
        first, *others = (counters for _, counters in self._reports.values())
        self._counters = sum(others, first)

    async def _generate(
        self, request: Request, attempt: int
    ) -> AsyncGenerator[tuple[TokenEvent, ...]]:
        """Ask some replica; its errors become ours. What was interrupted waits for a new one."""
        handle: Any = self._replica.options(stream=True)
        response = handle.generate.remote(request, is_patient=attempt > 0)
        try:
            async for reply in response:
                match reply:
                    case Refusal(reason):
                        raise ValueError(reason)
                    case Interruption(reason):
                        raise EngineUnavailableError(reason)
                yield reply
        except (RayError, RayServeException, ConnectionError) as error:
            raise EngineUnavailableError(f"a replica is gone: {type(error).__name__}") from error
        finally:
            response.cancel()

    async def report(self) -> ReplicaReport:
        """What some replica says of itself."""
        found: ReplicaReport = await self._replica.report.remote()
        return found

    async def journal(self) -> JournalCounters:
        """What happened to requests on their way."""
        return self._journal.counters

    async def places(self) -> tuple[RankPlace, ...]:
        """Node and process of every rank of some replica."""
        found: tuple[RankPlace, ...] = await self._replica.places.remote()
        return found

    async def drafter(self) -> DrafterVitals | None:
        """The drafter's newest sign of life."""
        found: DrafterVitals | None = await self._replica.drafter.remote()
        return found

    async def num_requests(self) -> int:
        """Requests that the engine works on or queues."""
        found: int = await self._replica.num_requests.remote()
        return found

    async def stop(self) -> None:
        """Take no more requests, let running ones finish for a while, then end every engine."""
        self._is_stopping = True
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._journal.counters.running and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for _ in range(self._config.data_parallel_size):
            await self._replica.stop.remote()
