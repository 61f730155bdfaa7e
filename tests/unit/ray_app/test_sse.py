"""Streams: signs of life while nothing comes, an error instead of a false end, closing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest

from ray_app import sse
from ray_app.engine_client import EngineUnavailableError


def collect(events: AsyncGenerator[str]) -> list[str]:
    async def run() -> list[str]:
        return [event async for event in sse.whole_stream(events)]

    return asyncio.run(run())


def test_a_silent_stream_shows_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.02)

    async def slow() -> AsyncGenerator[str]:
        yield "data: 1\n\n"
        await asyncio.sleep(0.1)
        yield "data: 2\n\n"

    found = collect(slow())
    assert [event for event in found if event != sse.KEEP_ALIVE] == ["data: 1\n\n", "data: 2\n\n"]
    assert found.count(sse.KEEP_ALIVE) >= 2


def test_an_engine_that_stops_is_an_error_event() -> None:
    async def broken() -> AsyncGenerator[str]:
        yield "data: 1\n\n"
        raise EngineUnavailableError("rank 1 died")

    *_, last = collect(broken())
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "rank 1 died"


def test_leaving_closes_what_feeds_the_stream() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[str]:
        try:
            while True:
                yield "data: 1\n\n"
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    async def run() -> None:
        stream = sse.whole_stream(endless())
        await anext(stream)
        await stream.aclose()
        assert closed.is_set()

    asyncio.run(run())
