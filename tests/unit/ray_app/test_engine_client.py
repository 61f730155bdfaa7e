"""Client and coordinator over a real socket, with a fake engine behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

import pytest

from engine.records import Request
from ray_app.coordinator_link import CoordinatorLink
from ray_app.engine_client import EngineClient, EngineUnavailableError
from ray_app.messages import DrafterFound, Hello, encode
from ray_app.serving_loop import ServingLoop
from ray_app.watchdog import Watchdog
from tests.support.fake_engine import MAX_PROMPT, EchoEngine

TOKEN = "secret"


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The far end, in a thread."""

    link: CoordinatorLink
    engine: EchoEngine
    thread: threading.Thread
    drafters: list[DrafterFound]


@contextmanager
def coordinator() -> Iterator[Coordinator]:
    link, engine = CoordinatorLink("127.0.0.1", TOKEN), EchoEngine()

    drafters: list[DrafterFound] = []

    def serve() -> None:
        link.accept(10.0)
        ServingLoop(
            engine,
            link,
            idle_seconds=0.01,
            on_drafter=drafters.append,
            watchdog=Watchdog(60.0),
        ).run()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield Coordinator(link, engine, thread, drafters)
    thread.join(10.0)
    link.close()
    assert not thread.is_alive()


def talk(body: Callable[[EngineClient, Coordinator], Awaitable[None]]) -> Coordinator:
    """Run ``body`` with a connected client, then stop the far end."""

    async def run(far: Coordinator) -> None:
        client = EngineClient()
        await client.connect(far.link.address, TOKEN)
        await asyncio.wait_for(body(client, far), 10.0)
        client.stop("the test is over")
        await client.close()

    with coordinator() as far:
        asyncio.run(run(far))
    return far


def request(name: str, max_tokens: int, prompt: tuple[int, ...] = (5, 6, 7)) -> Request:
    return Request(request_id=name, prompt_ids=prompt, max_tokens=max_tokens)


async def read(client: EngineClient, wanted: Request) -> list[int]:
    return [token async for event in await client.submit(wanted) for token in event.token_ids]


def test_a_drafters_address_reaches_the_coordinator() -> None:
    async def body(client: EngineClient, far: Coordinator) -> None:
        client.announce(DrafterFound(host="127.0.0.1", port=1, token="t"))
        while not far.drafters:
            await asyncio.sleep(0.01)

    assert talk(body).drafters == [DrafterFound(host="127.0.0.1", port=1, token="t")]


def test_every_reader_gets_its_own_requests_tokens() -> None:
    async def body(client: EngineClient, _far: Coordinator) -> None:
        answers = await asyncio.gather(
            read(client, request("a", 4)), read(client, request("b", 3, (1, 2)))
        )
        assert list(answers) == [[5, 6, 7, 5], [1, 2, 1]]
        assert client.num_requests == 0

    assert talk(body).engine.calls[-1] == "stop"


def test_a_refusal_is_a_value_error_before_any_token() -> None:
    async def body(client: EngineClient, _far: Coordinator) -> None:
        with pytest.raises(ValueError, match="the prompt has 65 tokens"):
            await client.submit(request("long", 1, tuple(range(MAX_PROMPT + 1))))
        assert client.num_requests == 0

    talk(body)


def test_a_reader_that_leaves_cancels_its_request() -> None:
    async def body(client: EngineClient, far: Coordinator) -> None:
        async with aclosing(await client.submit(request("a", 10**9))) as events:
            await anext(events)
            assert client.num_requests == 1
        while far.engine.running:
            await asyncio.sleep(0.01)
        assert "cancel a" in far.engine.calls

    talk(body)


def test_a_stream_that_nobody_ever_read_cancels_its_request() -> None:
    """An unread generator would leak the request: its clean-up never starts."""

    async def body(client: EngineClient, far: Coordinator) -> None:
        stream = await client.submit(request("a", 10**9))
        del stream
        while far.engine.running:
            await asyncio.sleep(0.01)
        assert client.num_requests == 0

    talk(body)


def test_a_task_cancelled_while_it_waits_cancels_its_request() -> None:
    async def body(client: EngineClient, far: Coordinator) -> None:
        reader = asyncio.create_task(read(client, request("a", 10**9)))
        while not far.engine.running:
            await asyncio.sleep(0.01)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        while far.engine.running:
            await asyncio.sleep(0.01)

    talk(body)


def test_a_failure_ends_running_and_later_requests_with_its_reason() -> None:
    async def body(client: EngineClient, far: Coordinator) -> None:
        reader = asyncio.create_task(read(client, request("a", 10**9)))
        while not far.engine.running:
            await asyncio.sleep(0.01)
        client.fail("rank 1 died")
        with pytest.raises(EngineUnavailableError, match="rank 1 died"):
            await reader
        with pytest.raises(EngineUnavailableError, match="rank 1 died"):
            await client.submit(request("b", 1))

    talk(body)


@pytest.mark.parametrize("greeting", [encode(Hello("wrong")), b"GET / HTTP/1.1\r\n\r\n", b""])
def test_a_stranger_is_turned_away_and_the_server_still_gets_in(greeting: bytes) -> None:
    async def run(far: Coordinator) -> None:
        with socket.create_connection((far.link.address.host, far.link.address.port)) as stranger:
            stranger.settimeout(10.0)
            stranger.sendall(greeting)
            with contextlib.suppress(OSError):  # It may have been turned away already.
                stranger.shutdown(socket.SHUT_WR)
            client = EngineClient()
            await client.connect(far.link.address, TOKEN)
            assert await read(client, request("a", 2)) == [5, 6]
            client.stop("over")
            await client.close()

    with coordinator() as far:
        asyncio.run(run(far))


def test_nobody_comes_is_a_timeout() -> None:
    link = CoordinatorLink("127.0.0.1", TOKEN)
    with pytest.raises(TimeoutError, match="no server connected"):
        link.accept(0.05)
    link.close()
