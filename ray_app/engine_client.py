"""The server's end of the private socket: requests out, every request's tokens to its own reader.

One task reads frames and deals their events to per-request queues, so a slow HTTP client delays
nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from engine.records import Request, TokenEvent
from ray_app.coordinator_link import LinkAddress
from ray_app.messages import (
    LENGTH_BYTES,
    Accepted,
    Add,
    Cancel,
    Hello,
    Message,
    Refused,
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


_Item = TokenEvent | Accepted | Refused | EngineUnavailableError


class EngineClient:
    """Speaks to one coordinator from one event loop."""

    def __init__(self) -> None:
        self._requests: dict[str, asyncio.Queue[_Item]] = {}
        self._failure: EngineUnavailableError | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None

    async def connect(self, address: LinkAddress, token: str) -> None:
        """Open the connection and present the token."""
        reader, self._writer = await asyncio.open_connection(address.host, address.port)
        self._send(Hello(token))
        self._reader_task = asyncio.create_task(self._read(reader))

    async def submit(self, request: Request) -> AsyncIterator[TokenEvent]:
        """Hand a request to the engine; returns its token events once it is accepted.

        Closing the iterator early cancels the request.

        Raises:
            ValueError: the engine refused the request: its sentence.
            EngineUnavailableError: the engine has stopped; also raised by the iterator.
        """
        if self._failure is not None:
            raise self._failure
        queue: asyncio.Queue[_Item] = asyncio.Queue()
        self._requests[request.request_id] = queue
        try:
            self._send(Add(request))
            answer = await queue.get()
        except BaseException:
            self._cancel(request.request_id)
            raise
        if isinstance(answer, Accepted):
            return self._events(request.request_id, queue)
        del self._requests[request.request_id]
        if isinstance(answer, Refused):
            raise ValueError(answer.reason)
        assert isinstance(answer, EngineUnavailableError), "no tokens before the acceptance"
        raise answer

    async def _events(
        self, request_id: str, queue: asyncio.Queue[_Item]
    ) -> AsyncIterator[TokenEvent]:
        finished = False
        try:
            while not finished:
                item = await queue.get()
                if isinstance(item, EngineUnavailableError):
                    finished = True
                    raise item
                assert isinstance(item, TokenEvent), "an acceptance comes once"
                finished = item.finish_reason is not None
                yield item
        finally:
            if finished:
                self._requests.pop(request_id, None)
            else:
                self._cancel(request_id)

    def _cancel(self, request_id: str) -> None:
        del self._requests[request_id]
        if self._failure is None:
            self._send(Cancel(request_id))

    @property
    def num_requests(self) -> int:
        """Requests that wait for tokens."""
        return len(self._requests)

    def fail(self, reason: str) -> None:
        """End every request with this reason, and refuse new ones."""
        if self._failure is None:
            self._failure = EngineUnavailableError(reason)
            for queue in self._requests.values():
                queue.put_nowait(self._failure)

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
            case _:
                raise ValueError(f"the coordinator may not send {type(message).__name__}")

    def _put(self, request_id: str, item: _Item) -> None:
        queue = self._requests.get(request_id)
        if queue is not None:
            queue.put_nowait(item)
