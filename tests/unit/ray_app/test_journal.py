"""A request goes on elsewhere behind what was delivered: nothing is repeated, nothing skipped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from engine.records import Request, TokenEvent, TokenSource
from ray_app.engine_client import EngineUnavailableError, ServerStoppingError
from ray_app.http_errors import OverloadedError
from ray_app.journal import MAX_MIGRATIONS, Journal

ANSWER = tuple(range(100, 112))
VERIFIER: TokenSource = "verifier"
REQUEST = Request(request_id="r", prompt_ids=(1, 2), max_tokens=len(ANSWER))


class Replicas:
    """Each attempt gives so many events of two tokens before it breaks; None never breaks."""

    def __init__(self, *lives: int | None) -> None:
        self._lives = list(lives)
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self.closed = 0

    async def generate(
        self, request: Request, attempt: int
    ) -> AsyncGenerator[tuple[TokenEvent, ...]]:
        self.asked.append((request.output_ids, attempt))
        life = self._lives.pop(0)
        try:
            if life == 0:
                raise EngineUnavailableError("gone before it began")
            yield ()
            for number, start in enumerate(range(len(request.output_ids), len(ANSWER), 2)):
                if life is not None and number >= life - 1:
                    raise EngineUnavailableError("gone")
                piece = ANSWER[start : start + 2]
                last = start + 2 >= len(ANSWER)
                yield (
                    TokenEvent(
                        request_id="r",
                        token_ids=piece,
                        sources=tuple(VERIFIER for _ in piece),
                        finish_reason="length" if last else None,
                    ),
                )
        finally:
            self.closed += 1


async def read(journal: Journal) -> tuple[int, ...]:
    events = await journal.submit(REQUEST)
    return tuple([token async for event in events for token in event.token_ids])


@pytest.mark.parametrize("lives", [(None,), (3, None), (1, None), (0, None), (2, 3, 2, None)])
def test_the_answer_is_whole_over_as_many_replicas_as_it_takes(lives: tuple[int | None]) -> None:
    replicas = Replicas(*lives)
    journal = Journal(replicas.generate, max_requests=9)
    assert asyncio.run(read(journal)) == ANSWER
    assert journal.counters.migrations == len(lives) - 1
    assert journal.counters.running == 0
    assert replicas.closed == len(lives)
    for delivered, _ in replicas.asked:
        assert delivered == ANSWER[: len(delivered)]
    assert [attempt for _, attempt in replicas.asked] == list(range(len(lives)))


def test_it_gives_up_after_so_many_migrations() -> None:
    journal = Journal(Replicas(*[2] * (MAX_MIGRATIONS + 1)).generate, max_requests=9)
    with pytest.raises(EngineUnavailableError, match="gone"):
        asyncio.run(read(journal))
    assert journal.counters.migrations == MAX_MIGRATIONS
    assert journal.counters.running == 0


@pytest.mark.parametrize("error", [ValueError("no"), ServerStoppingError("stopping")])
def test_refusals_are_not_handed_in_again(error: Exception) -> None:
    calls = 0

    async def refuse(request: Request, attempt: int) -> AsyncGenerator[tuple[TokenEvent, ...]]:
        del request, attempt
        nonlocal calls
        calls += 1
        if calls:
            raise error
        yield ()

    journal = Journal(refuse, max_requests=9)
    with pytest.raises(type(error)):
        asyncio.run(read(journal))
    assert calls == 1
    assert journal.counters.running == 0


def test_a_reader_who_leaves_cancels() -> None:
    replicas = Replicas(None)
    journal = Journal(replicas.generate, max_requests=9)

    async def leave() -> None:
        events = await journal.submit(REQUEST)
        await anext(aiter(events))
        await events.aclose()

    asyncio.run(leave())
    assert replicas.closed == 1
    assert journal.counters.running == 0


def test_more_than_may_run_are_turned_away() -> None:
    """Every choice of a body counts."""

    async def run() -> None:
        journal = Journal(Replicas(None, None, None).generate, max_requests=2)
        first, _ = await journal.submit(REQUEST), await journal.submit(REQUEST)
        with pytest.raises(OverloadedError, match="2 requests run or wait, and no more may"):
            await journal.submit(REQUEST)
        await first.aclose()
        await journal.submit(REQUEST)

    asyncio.run(run())
