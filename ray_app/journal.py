"""The ingress's journal: what was delivered of every request, so that another replica can go on.

When a replica loses its verifier, or dies itself, the request is handed in again with the output
that its client has already seen. The engine goes on behind it: no token is repeated or skipped, and
a greedy or seeded answer is the one that an undisturbed engine would have given.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace

from engine.records import Request, TokenEvent
from ray_app.engine_client import EngineUnavailableError
from ray_app.http_errors import OverloadedError

logger = logging.getLogger(__name__)

MAX_MIGRATIONS = 3
"""Times that one request is handed in again."""

Batches = AsyncGenerator[tuple[TokenEvent, ...]]
"""Events in groups; the first, empty one says that the engine has accepted the request."""

Generate = Callable[[Request, int], Batches]
"""Asks some replica, for the n-th time from 0.

Raises ValueError for a refusal, EngineUnavailableError if the replica cannot go on.
"""


@dataclass(slots=True)
class JournalCounters:
    """What happened to requests on their way to replicas."""

    migrations: int = 0
    running: int = 0
    """Requests now in the journal."""


@dataclass(slots=True)
class JournaledEvents:
    """Implements ``generation.Events`` over as many replicas as it takes."""

    request: Request
    generate: Generate
    counters: JournalCounters
    _batches: Batches | None = None
    _ready: list[TokenEvent] = field(default_factory=list)
    _delivered: list[int] = field(default_factory=list)
    _num_migrations: int = 0
    _is_open: bool = False

    async def start(self) -> None:
        """Wait for the engine's acceptance.

        Raises:
            ValueError: the engine refuses the request: its sentence.
            EngineUnavailableError: no replica can serve it.
        """
        self._is_open = True
        self.counters.running += 1
        try:
            await self._open()
        except BaseException:
            await self.aclose()
            raise

    def __aiter__(self) -> JournaledEvents:
        return self

    async def __anext__(self) -> TokenEvent:
        """The next event. Raises EngineUnavailableError if nobody can go on with the request."""
        while not self._ready:
            if not self._is_open:
                raise StopAsyncIteration
            try:
                await self._fetch()
            except BaseException:
                await self.aclose()
                raise
        event = self._ready.pop(0)
        self._delivered += event.token_ids
        if event.finish_reason is not None:
            await self.aclose()
        return event

    def complete(self) -> None:
        """Nothing to note: closing cancels in any case."""

    async def aclose(self) -> None:
        """Cancel the request unless it has ended."""
        if self._is_open:
            self._is_open = False
            self.counters.running -= 1
        if self._batches is not None:
            batches, self._batches = self._batches, None
            await batches.aclose()

    async def _open(self) -> None:
        """Hand the request in, with what was delivered of it."""
        while True:
            resumed = replace(self.request, output_ids=tuple(self._delivered))
            self._batches = self.generate(resumed, self._num_migrations)
            try:
                await anext(self._batches)
            except EngineUnavailableError as error:
                self._count_migration(error)
            else:
                return

    async def _fetch(self) -> None:
        assert self._batches is not None, "an open request is with some replica"
        try:
            self._ready += await anext(self._batches)
        except StopAsyncIteration:
            await self.aclose()
        except EngineUnavailableError as error:
            self._count_migration(error)
            await self._open()

    def _count_migration(self, error: EngineUnavailableError) -> None:
        """Raises the error when the request was handed in often enough."""
        if self._num_migrations == MAX_MIGRATIONS or error.is_final:
            raise error
        self._num_migrations += 1
        self.counters.migrations += 1
        logger.warning(
            "request %s goes on elsewhere behind %d tokens: %s",
            self.request.request_id,
            len(self._delivered),
            error,
        )


class Journal:
    """Implements ``generation.TokenSource``: every request with its journal entry."""

    def __init__(self, generate: Generate, *, max_requests: int) -> None:
        self._generate, self._max_requests = generate, max_requests
        self.counters = JournalCounters()

    async def submit(self, request: Request) -> JournaledEvents:
        """Hand a request to some replica.

        Raises as ``JournaledEvents.start``, and OverloadedError when as many wait as may.
        """
        if self.counters.running >= self._max_requests:
            raise OverloadedError(f"{self.counters.running} requests run or wait, and no more may")
        events = JournaledEvents(request, self._generate, self.counters)
        await events.start()
        return events
