"""Several requests of one body: all or none, read side by side, the first failure ends all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from engine.records import Request, TokenEvent
from engine.tokenizer import Tokenizer
from ray_app.generation import Generation, merged, submit_all, total_usage
from ray_app.text_stream import TextOptions, TextStream


@dataclass(slots=True)
class Events:
    """Two tokens of 'ab'; ``fails`` breaks behind the first."""

    token_ids: list[int]
    fails: bool = False
    is_closed: bool = False
    is_complete: bool = False

    async def __aiter__(self) -> AsyncGenerator[TokenEvent]:
        for index, token in enumerate(self.token_ids):
            await asyncio.sleep(0)
            if index and self.fails:
                raise RuntimeError("broken")
            last = index == len(self.token_ids) - 1
            yield TokenEvent(
                request_id="r",
                token_ids=(token,),
                sources=("verifier",),
                finish_reason="length" if last else None,
            )

    def complete(self) -> None:
        self.is_complete = True

    async def aclose(self) -> None:
        self.is_closed = True


@dataclass(slots=True)
class Source:
    """Refuses prompts of more than three tokens; prompts of three tokens break midway."""

    token_ids: list[int]
    submitted: list[Events] = field(default_factory=list)

    async def submit(self, request: Request) -> Events:
        if len(request.prompt_ids) > 3:
            raise ValueError("the prompt is too long")
        self.submitted.append(Events(self.token_ids, fails=len(request.prompt_ids) == 3))
        return self.submitted[-1]


def request(length: int) -> Request:
    return Request(request_id="r", prompt_ids=tuple(range(length)), max_tokens=9)


def submit(tokenizer: Tokenizer, source: Source, *lengths: int) -> list[Generation]:
    requests = [request(length) for length in lengths]
    return asyncio.run(submit_all(requests, source, lambda: TextStream(tokenizer, TextOptions())))


def test_one_refusal_takes_back_what_was_accepted(tokenizer: Tokenizer) -> None:
    """Else its slot would stay in use with nobody reading."""
    source = Source(tokenizer.encode("ab"))
    with pytest.raises(ValueError, match="too long"):
        submit(tokenizer, source, 1, 2, 4)
    assert [events.is_closed for events in source.submitted] == [True, True]


def read(generations: list[Generation]) -> dict[int, str]:
    async def run() -> dict[int, str]:
        texts = {generation.index: "" for generation in generations}
        async for generation, piece in merged(generations):
            texts[generation.index] += piece.text
        return texts

    return asyncio.run(run())


def test_all_are_read_to_their_ends(tokenizer: Tokenizer) -> None:
    source = Source(tokenizer.encode("ab"))
    generations = submit(tokenizer, source, 1, 2)
    assert read(generations) == {0: "ab", 1: "ab"}
    assert all(events.is_closed for events in source.submitted)
    assert {generation.finish_reason for generation in generations} == {"length"}
    assert total_usage(generations, 1).prompt_tokens == 3
    assert total_usage(generations, 2).prompt_tokens == 1


def test_the_first_failure_cancels_the_others(tokenizer: Tokenizer) -> None:
    source = Source(tokenizer.encode("ab" * 40))
    generations = submit(tokenizer, source, 1, 3)
    with pytest.raises(RuntimeError, match="broken"):
        read(generations)
    assert all(events.is_closed for events in source.submitted)


def test_a_stop_string_completes_an_answer_and_is_no_abort(tokenizer: Tokenizer) -> None:
    """Else the metrics call every answer with a stop string aborted."""
    source = Source(tokenizer.encode("abcd"))
    options = TextOptions(stop=("bc",))
    generations = asyncio.run(
        submit_all([request(1)], source, lambda: TextStream(tokenizer, options))
    )
    assert read(generations) == {0: "a"}
    assert source.submitted[0].is_complete
    assert source.submitted[0].is_closed
