"""Owns the gang of ranks and the connection to its coordinator, inside the replica's event loop.

Everything that waits for Ray runs in threads; tokens arrive on the socket. When a rank dies or
hangs, every request fails with the reason, so that its journal can hand it in again, the gang is
killed and built anew, and the status is red meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from engine.counters import EngineCounters
from engine.records import Request
from engine.tokenizer import load_tokenizer
from engine.weights import resolve_model
from ray_app.config import ServerConfig
from ray_app.drafter_actor import DrafterVitals
from ray_app.drafter_keeper import DrafterKeeper
from ray_app.engine_client import EngineClient, EngineUnavailableError
from ray_app.messages import DrafterFound
from ray_app.verifier_actor import RankPlace
from ray_app.worker_group import RankFailedError, WorkerGroup

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""How long one look at the ranks blocks; a death ends it at once."""
DRAIN_SECONDS = 5.0
"""How long running requests may still take after a stop was asked for."""
MAX_REBUILDS = 3
"""Gangs that may be lost within ``REBUILD_WINDOW_SECONDS``; one more is a failure."""
REBUILD_WINDOW_SECONDS = 600.0
REBUILD_WAIT_SECONDS = 120.0
"""How long a request waits for a gang that is being built anew."""

State = Literal["starting", "ready", "rebuilding", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Whether the engine can serve, and if not, why."""

    state: State
    detail: str = ""
    user_error: bool = False
    """Whether ``detail`` is about what the user asked for: then a retry cannot help."""


class Supervisor:
    """Starts, watches, rebuilds and stops one engine."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._group, self._client = self._new_gang()
        self._keeper: DrafterKeeper | None = None
        self._status = Status(state="starting", detail="the verifier is loading")
        self._changed = asyncio.Condition()
        self._losses: deque[float] = deque()
        self._task: asyncio.Task[None] | None = None
        self.was_ready = False
        """Whether it ever could serve."""

    def _new_gang(self) -> tuple[WorkerGroup, EngineClient]:
        config = self._config
        group = WorkerGroup(
            config.engine, device=config.device, watchdog_seconds=config.watchdog_seconds
        )
        return group, EngineClient()

    def begin(self) -> None:
        """Start in the background of the running event loop."""
        self._task = asyncio.create_task(self._run())

    @property
    def status(self) -> Status:
        """What ``/health`` shows."""
        return self._status

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """Node and process of every rank."""
        return self._group.places

    @property
    def drafter(self) -> DrafterVitals | None:
        """The drafter's newest sign of life; None when there is no drafter."""
        return None if self._keeper is None else self._keeper.vitals

    @property
    def num_requests(self) -> int:
        """Requests that the engine works on or queues."""
        return self._client.num_requests

    @property
    def counters(self) -> EngineCounters:
        """The engine's newest counters; a rebuilt engine starts from zero."""
        return self._client.counters

    async def source(self, *, is_patient: bool) -> EngineClient:
        """Where tokens come from; waits for a gang that is rebuilt, if patient for the first too.

        Raises:
            EngineUnavailableError: the engine does not run, and waiting does not help.
        """
        waits_for = {"rebuilding", "starting"} if is_patient else {"rebuilding"}
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REBUILD_WAIT_SECONDS):
                    await self._changed.wait_for(lambda: self._status.state not in waits_for)
        if self._status.state != "ready":
            raise EngineUnavailableError(self._status.detail)
        return self._client

    async def _run(self) -> None:
        """Start, and keep alive until stopped or given up."""
        try:
            await self._start_gang()
            while not await self._watch():
                await self._rebuild()
        except ValueError as error:
            await self._fail(Status(state="failed", detail=str(error), user_error=True))
        except EngineUnavailableError as error:
            await self._fail(Status(state="failed", detail=str(error)))
        except Exception as error:
            await self._fail(Status(state="failed", detail=f"{type(error).__name__}: {error}"))
            raise

    async def _start_gang(self) -> None:
        await asyncio.to_thread(self._load_model)
        token = secrets.token_hex(16)
        try:
            address = await asyncio.to_thread(self._group.start, token)
        except (RankFailedError, TimeoutError) as error:
            if self._status.state != "stopped":
                logger.exception("the ranks did not start")
            raise EngineUnavailableError(str(error)) from error
        await self._client.connect(address, token)
        await self._start_drafter(asyncio.get_running_loop())
        await self._generate_first_token()
        if self._status.state in ("starting", "rebuilding"):
            self.was_ready = True
            await self._set(Status(state="ready"))

    async def _start_drafter(self, loop: asyncio.AbstractEventLoop) -> None:
        """The keeper speaks from its own thread; the connection belongs to the event loop.

        A drafter outlives the gang: a new coordinator is told where it is.
        """

        def announce(drafter: DrafterFound) -> None:
            loop.call_soon_threadsafe(lambda: self._client.announce(drafter))

        if self._config.engine.speculation.drafter == "none":
            return
        if self._keeper is not None:
            if self._keeper.address is not None:
                self._client.announce(self._keeper.address)
            return
        self._keeper = DrafterKeeper(self._config.engine, announce)
        await asyncio.to_thread(self._keeper.start)

    def _load_model(self) -> None:
        """Resolve the model before any rank starts, so that only one process converts weights."""
        load_tokenizer(resolve_model(self._config.engine.model))

    async def _generate_first_token(self) -> None:
        """Ready means that a token has really come out."""
        request = Request(request_id="first-token", prompt_ids=(0,), max_tokens=1)
        async for _ in await self._client.submit(request):
            pass
        self._client.begin()

    async def _watch(self) -> bool:
        """Look at the ranks until one has ended or hangs; True if that was asked for."""
        try:
            while True:
                await asyncio.to_thread(self._group.check, POLL_SECONDS)
                if self._client.silent_seconds > self._config.watchdog_seconds:
                    raise RankFailedError(
                        f"the coordinator has said nothing for {self._client.silent_seconds:.0f} s"
                    )
        except RankFailedError as error:
            stopped = self._status.state == "stopped"
            if not stopped:
                logger.warning("the verifier is lost: %s", error)
                await self._lose(str(error))
            self._client.fail(str(error))
            return stopped

    async def _lose(self, reason: str) -> None:
        """Turn red. Raises EngineUnavailableError when too many gangs were lost."""
        now = time.monotonic()
        self._losses.append(now)
        while now - self._losses[0] > REBUILD_WINDOW_SECONDS:
            self._losses.popleft()
        if len(self._losses) > MAX_REBUILDS:
            raise EngineUnavailableError(
                f"{reason}; that was loss {len(self._losses)} within "
                f"{REBUILD_WINDOW_SECONDS / 60:.0f} minutes"
            )
        await self._set(Status(state="rebuilding", detail=reason))

    async def _rebuild(self) -> None:
        """Remove what is left of the gang and start another."""
        old_group, old_client = self._group, self._client
        self._group, self._client = self._new_gang()
        await asyncio.to_thread(old_group.kill)
        await old_client.close()
        await self._start_gang()
        logger.warning("the verifier is back")

    async def _fail(self, status: Status) -> None:
        """Turn red for good and end every request; the first reason stays."""
        if self._status.state != "stopped" and self._status.state != "failed":
            level = logging.INFO if status.user_error else logging.ERROR
            logger.log(level, "the engine is down: %s", status.detail)
            await self._set(status)
        self._client.fail(status.detail)
        await asyncio.to_thread(self._group.kill)

    async def _set(self, status: Status) -> None:
        async with self._changed:
            self._status = status
            self._changed.notify_all()

    async def stop(self) -> None:
        """Let running requests finish for a while, then end every rank; nothing stays behind."""
        if self._status.state != "failed":
            await self._set(Status(state="stopped", detail="the server is stopping"))
        self._group.cancel_start()
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._client.num_requests and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.stop)
        self._client.stop("the server has stopped")
        if self._task is not None:
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._group.stop)
        await self._client.close()
