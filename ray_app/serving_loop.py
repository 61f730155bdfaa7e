"""The coordinator's loop: requests from the socket in, one step, its tokens out in one frame.

While nothing runs it sleeps on the socket and wakes every few seconds only to tell the other ranks
that nothing happened, so that their receive never times out. Nothing here goes through Ray.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from engine.counters import EngineCounters
from engine.records import Request, StepOutcome
from ray_app.coordinator_link import LinkClosedError
from ray_app.messages import (
    Accepted,
    Add,
    Began,
    Cancel,
    DrafterFound,
    Message,
    Refused,
    Stats,
    Stop,
    Tokens,
)
from ray_app.watchdog import Watchdog

logger = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
"""Pause between two signs of life; far below the process group's timeout."""
STATS_SECONDS = 0.5
"""Pause between two reports of the counters while the engine works."""


class ServableEngine(Protocol):
    """What the loop needs of ``engine.engine.SpeculativeEngine``."""

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        ...

    def add(self, request: Request) -> None:
        """Queue a request; ValueError if it cannot be served."""
        ...

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        ...

    def step(self) -> StepOutcome:
        """Advance every running request."""
        ...

    def idle(self) -> None:
        """Tell the other ranks that nothing happens."""
        ...

    def stop(self) -> None:
        """End the other ranks' loop."""
        ...

    def counters(self) -> EngineCounters:
        """What happened since the start, and the load now."""
        ...

    def reset_counters(self) -> None:
        """Count from here."""
        ...


class Link(Protocol):
    """What the loop needs of ``CoordinatorLink``."""

    def receive(self, timeout: float) -> list[Message]:
        """Messages that are here; waits up to ``timeout`` seconds for the first."""
        ...

    def send(self, message: Message) -> None:
        """Send one message."""
        ...


class ServingLoop:
    """Serves one link until the server says stop or goes away."""

    def __init__(
        self,
        engine: ServableEngine,
        link: Link,
        *,
        idle_seconds: float,
        on_drafter: Callable[[DrafterFound], None],
        watchdog: Watchdog,
    ) -> None:
        self._engine, self._link, self._idle_seconds = engine, link, idle_seconds
        self._on_drafter = on_drafter
        self._last_sign = self._last_stats = time.monotonic()
        self._watchdog = watchdog
        self._is_unreported = False

    def run(self) -> None:
        """Serve, then end every rank's loop.

        An exception of the engine propagates without ``engine.stop()``: after a rank has died, one
        more collective would hang or hide the reason.
        """
        try:
            while self._serve_once():
                pass
        except LinkClosedError as error:
            logger.warning("stopping: %s", error)
        self._engine.stop()

    def _serve_once(self) -> bool:
        """One round; False after a stop message."""
        messages = self._link.receive(0.0 if self._engine.has_work else self._idle_seconds)
        for message in messages:
            if isinstance(message, Stop):
                return False
            self._apply(message)
        if self._engine.has_work:
            self._step()
        elif time.monotonic() - self._last_sign >= self._idle_seconds:
            self._engine.idle()
            self._last_sign = time.monotonic()
        self._report()
        return True

    def _apply(self, message: Message) -> None:
        match message:
            case Add(request):
                self._add(request)
                self._is_unreported = True
            case Cancel(request_id):
                self._engine.cancel(request_id)
            case Began():
                self._engine.reset_counters()
                self._is_unreported = True
            case DrafterFound():
                self._on_drafter(message)
            case _:
                raise ValueError(f"the server may not send {type(message).__name__}")

    def _add(self, request: Request) -> None:
        try:
            self._engine.add(request)
        except ValueError as error:
            self._link.send(Refused(request.request_id, str(error)))
        else:
            self._link.send(Accepted(request.request_id))

    def _step(self) -> None:
        with self._watchdog.watching():
            events = self._engine.step().events
        self._last_sign = time.monotonic()
        if events:
            self._link.send(Tokens(events))

    def _report(self) -> None:
        """The counters now and then while it works, and once when it does no more."""
        now, works = time.monotonic(), self._engine.has_work
        if now - self._last_stats > STATS_SECONDS if works else self._is_unreported:
            self._link.send(Stats(self._engine.counters()))
            self._last_stats = now
        self._is_unreported = works
