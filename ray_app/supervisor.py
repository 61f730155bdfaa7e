"""Owns the gang of ranks and the connection to its coordinator, inside the server's event loop.

Everything that waits for Ray runs in threads; tokens arrive on the socket. When a rank dies, every
request fails with its reason and the status turns red; rebuilding the gang is not done here.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass
from typing import Literal

from engine.records import Request
from engine.tokenizer import load_tokenizer
from engine.weights import resolve_model
from ray_app.chat import ChatModel
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

State = Literal["starting", "ready", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Whether the engine can serve, and if not, why."""

    state: State
    detail: str = ""
    user_error: bool = False
    """Whether ``detail`` is about what the user asked for: then a retry cannot help."""


class Supervisor:
    """Starts, watches and stops one engine."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._group = WorkerGroup(config.engine, device=config.device)
        self._client = EngineClient()
        self._keeper: DrafterKeeper | None = None
        self._model: ChatModel | None = None
        self._status = Status(state="starting", detail="the verifier is loading")
        self._start_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start in the background of the running event loop."""
        self._start_task = asyncio.create_task(self._start())

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
    def model(self) -> ChatModel:
        """The served model. Raises EngineUnavailableError before its files are read."""
        if self._model is None:
            raise EngineUnavailableError(self._status.detail)
        return self._model

    @property
    def source(self) -> EngineClient:
        """Where tokens come from. Raises EngineUnavailableError unless the engine is ready."""
        if self._status.state != "ready":
            raise EngineUnavailableError(self._status.detail)
        return self._client

    async def _start(self) -> None:
        try:
            await self._start_ranks()
            self._watch_task = asyncio.create_task(self._watch())
            await self._generate_first_token()
        except ValueError as error:
            self._fail(Status(state="failed", detail=str(error), user_error=True))
        except EngineUnavailableError as error:
            self._fail(Status(state="failed", detail=str(error)))
        except Exception as error:
            self._fail(Status(state="failed", detail=f"{type(error).__name__}: {error}"))
            raise
        if self._status.state == "starting":
            self._status = Status(state="ready")

    async def _start_ranks(self) -> None:
        self._model = await asyncio.to_thread(self._load_model)
        token = secrets.token_hex(16)
        try:
            address = await asyncio.to_thread(self._group.start, token)
        except (RankFailedError, TimeoutError) as error:
            if self._status.state == "starting":
                logger.exception("the ranks did not start")
            raise EngineUnavailableError(str(error)) from error
        await self._client.connect(address, token)
        if self._config.engine.speculation.drafter != "none":
            await self._start_drafter(asyncio.get_running_loop())

    async def _start_drafter(self, loop: asyncio.AbstractEventLoop) -> None:
        """The keeper speaks from its own thread; the connection belongs to the event loop."""

        def announce(drafter: DrafterFound) -> None:
            loop.call_soon_threadsafe(self._client.announce, drafter)

        self._keeper = DrafterKeeper(self._config.engine, announce)
        await asyncio.to_thread(self._keeper.start)

    def _load_model(self) -> ChatModel:
        """Resolve the model before any rank starts, so that only one process converts weights."""
        config = self._config
        return ChatModel(
            name=config.served_model_name,
            tokenizer=load_tokenizer(resolve_model(config.engine.model)),
            max_model_len=config.engine.max_model_len,
            created=int(time.time()),
        )

    async def _generate_first_token(self) -> None:
        """Ready means that a token has really come out."""
        prompt = tuple(self.model.tokenizer.encode("Hello"))
        request = Request(request_id="first-token", prompt_ids=prompt, max_tokens=1)
        async for _ in await self._client.submit(request):
            pass

    async def _watch(self) -> None:
        """Look at the ranks until one has ended: after a stop, or by failing."""
        try:
            while True:
                await asyncio.to_thread(self._group.check, POLL_SECONDS)
        except RankFailedError as error:
            if self._status.state == "stopped":
                self._client.fail(str(error))
                return
            logger.exception("a rank has ended")
            self._fail(Status(state="failed", detail=str(error)))
            await asyncio.to_thread(self._group.kill)

    def _fail(self, status: Status) -> None:
        """Turn red and end every request; the first reason stays."""
        if self._status.state in ("starting", "ready"):
            level = logging.INFO if status.user_error else logging.ERROR
            logger.log(level, "the engine is down: %s", status.detail)
            self._status = status
        self._client.fail(status.detail)

    async def stop(self) -> None:
        """Let running requests finish for a while, then end every rank; nothing stays behind."""
        if self._status.state != "failed":
            self._status = Status(state="stopped", detail="the server is stopping")
        self._group.cancel_start()
        await _settle(self._start_task)
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._client.num_requests and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.stop)
        self._client.stop("the server has stopped")
        await _settle(self._watch_task)
        await asyncio.to_thread(self._group.stop)
        await self._client.close()


async def _settle(task: asyncio.Task[None] | None) -> None:
    """Wait for a background task, whatever became of it."""
    if task is not None:
        await asyncio.wait([task])
