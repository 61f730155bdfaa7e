"""The server's end of the private socket: requests out, every request's tokens to its own reader.

One task reads frames and deals their events to per-request queues, so a slow HTTP client delays
nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial

from engine.counters import EngineCounters
from engine.records import Request, TokenEvent
from ray_app.coordinator_link import LinkAddress
from ray_app.messages import (
    LENGTH_BYTES,
    Accepted,
    Add,
    Began,
    Cancel,
    DrafterFound,
    Hello,
    Message,
    Refused,
    Stats,
    Stop,
    Tokens,
    decode,
    encode,
    frame_length,
)

EXPLAIN_SECONDS = 5.0
"""How long a broken connection waits for whoever knows the reason to call :meth:`fail`."""


class EngineUnavailableError(RuntimeError):
    """The engine does not run, or stopped during the request; the text says why."""

    is_final = False
    """Whether handing the request in again cannot help."""


class ServerStoppingError(EngineUnavailableError):
    """The server is being stopped, and takes no requests any more."""

    is_final = True


_Item = TokenEvent | Accepted | Refused | EngineUnavailableError


class TokenStream:
    """The token events of one accepted request, as an asynchronous iterator.

    Whoever stops reading before the end cancels the request, by :meth:`aclose` or by dropping the
    stream; a generator would do neither if it was dropped before its first event.
    """

    def __init__(self, queue: asyncio.Queue[_Item], cancel: Callable[[], None]) -> None:
        self._queue, self._cancel = queue, cancel
        self._finished = False

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> TokenEvent:
        """The next event. Raises EngineUnavailableError if the engine stops."""
        if self._finished:
            raise StopAsyncIteration
        item = await self._queue.get()
        if isinstance(item, EngineUnavailableError):
            self._close()
            raise item
        assert isinstance(item, TokenEvent), "an acceptance comes once"
        if item.finish_reason is not None:
            self._close()
        return item

    def ready(self) -> list[TokenEvent]:
        """The events that are here already, so that a slow reader gets them in one go."""
        events: list[TokenEvent] = []
        while not self._finished and not self._queue.empty():
            item = self._queue.get_nowait()
            if not isinstance(item, TokenEvent):
                self._queue.put_nowait(item)
                break
            events.append(item)
            if item.finish_reason is not None:
                self._close()
        return events

    async def aclose(self) -> None:
        """Cancel the request unless it has ended."""
        self._close()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if not self._finished:
            self._finished = True
            self._cancel()


class EngineClient:
    """Speaks to one coordinator from one event loop."""

    def __init__(self) -> None:
        self._requests: dict[str, asyncio.Queue[_Item]] = {}
        self._failure: EngineUnavailableError | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._last_frame = time.monotonic()
        self.counters = EngineCounters()
        """The engine's newest."""

    async def connect(self, address: LinkAddress, token: str) -> None:
        """Open the connection and present the token."""
        reader, self._writer = await asyncio.open_connection(address.host, address.port)
        self._send(Hello(token))
        self._reader_task = asyncio.create_task(self._read(reader))

    async def submit(self, request: Request) -> TokenStream:
        """Hand a request to the engine; returns its token events once it is accepted.

        Raises:
            ValueError: the engine refused the request: its sentence.
            EngineUnavailableError: the engine has stopped.
        """
        if self._failure is not None:
            raise self._failure
        if not self._requests:
            self._last_frame = time.monotonic()
        queue: asyncio.Queue[_Item] = asyncio.Queue()
        stream = TokenStream(queue, partial(self._forget, request.request_id))
        self._requests[request.request_id] = queue
        self._send(Add(request))
        answer = await queue.get()
        if isinstance(answer, Accepted):
            return stream
        self._requests.pop(request.request_id)
        if isinstance(answer, Refused):
            raise ValueError(answer.reason)
        assert isinstance(answer, EngineUnavailableError), "no tokens before the acceptance"
        raise answer

    def _forget(self, request_id: str) -> None:
        """A stream has ended; the engine knows if it was by its last event."""
        if self._requests.pop(request_id, None) is not None and self._failure is None:
            self._send(Cancel(request_id))

    @property
    def silent_seconds(self) -> float:
        """How long requests have waited without any word from the engine; 0 without requests."""
        return time.monotonic() - self._last_frame if self._requests else 0.0

    @property
    def num_requests(self) -> int:
        """Requests that wait for tokens from the engine."""
        return len(self._requests)

    def fail(self, reason: str) -> None:
        """End every request with this reason, and refuse new ones."""
        if self._failure is None:
            self._failure = EngineUnavailableError(reason)
            for queue in self._requests.values():
                queue.put_nowait(self._failure)

    def begin(self) -> None:
        """Tell the coordinator that traffic begins: it counts from here."""
        self._send(Began())

    def announce(self, drafter: DrafterFound) -> None:
        """Tell the coordinator where the current drafter listens; nothing once it has failed."""
        if self._failure is None and self._writer is not None:
            self._send(drafter)

    def stop(self, reason: str) -> None:
        """Tell the coordinator to end every rank's loop; running requests fail with ``reason``."""
        if self._failure is None and self._writer is not None:
            self._send(Stop())
        self.fail(reason)

    async def close(self) -> None:
        """Close the connection."""
        if self._reader_task is not None:
            self._reader_task.cancel()
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    def _send(self, message: Message) -> None:
        assert self._writer is not None, "connect first"
        self._writer.write(encode(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                length = frame_length(await reader.readexactly(LENGTH_BYTES))
                self._last_frame = time.monotonic()
                self._deal(decode(await reader.readexactly(length)))
        await asyncio.sleep(EXPLAIN_SECONDS)
        self.fail("the connection to the verifier's coordinator broke")

    def _deal(self, message: Message) -> None:
        """Events of a request that was cancelled meanwhile have no queue any more."""
        match message:
            case Tokens(events):
                for event in events:
                    self._put(event.request_id, event)
            case Accepted(request_id) | Refused(request_id, _):
                self._put(request_id, message)
            case Stats(counters):
                self.counters = counters
            case _:
                raise ValueError(f"the coordinator may not send {type(message).__name__}")

    def _put(self, request_id: str, item: _Item) -> None:
        queue = self._requests.get(request_id)
        if queue is None:
            return
        queue.put_nowait(item)
        if isinstance(item, TokenEvent) and item.finish_reason is not None:
            del self._requests[request_id]
