"""One answer in the making: an accepted engine request, its text, its counters.

Several choices, and several prompts of one body, are several of these; :func:`merged` reads them
side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.metrics import DRAFT_SOURCES
from engine.records import Request, RequestMetrics, TokenEvent, TokenLogprobs
from ray_app.openai_responses import FinishReason, PromptDetails, Usage
from ray_app.text_stream import Piece, TextStream


class Events(Protocol):
    """Token events of one request; closing them early cancels it."""

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """The events in order."""
        ...

    def complete(self) -> None:
        """The answer is complete, whatever else the engine would send: closing is no abort."""
        ...

    async def aclose(self) -> None:
        """Nobody reads any more."""
        ...


class TokenSource(Protocol):
    """Where tokens come from."""

    async def submit(self, request: Request) -> Events:
        """Token events of an accepted request; ValueError if the engine refuses it."""
        ...


@dataclass(slots=True, kw_only=True)
class Generation:
    """One choice; its counters are final when its pieces have ended."""

    index: int
    request: Request
    events: Events
    text: TextStream
    num_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    metrics: RequestMetrics | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    _accepted: dict[str, int] = field(default_factory=dict)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """What becomes visible; closing early cancels the request, and so does a stop string."""
        async with aclosing(self.events) as events:
            async for event in events:
                piece = self.text.push(event)
                self._note(event, piece)
                if piece.token_ids:
                    yield piece
                if piece.is_last:
                    return

    def _note(self, event: TokenEvent, piece: Piece) -> None:
        self.num_tokens += len(piece.token_ids)
        self.prompt_logprobs += event.prompt_logprobs
        self.metrics = event.metrics
        for source in event.sources[: len(piece.token_ids)]:
            self._accepted[source] = self._accepted.get(source, 0) + 1
        if piece.is_last:
            self.stop_reason = piece.stop_reason
            if self.text.finished_by_string:
                self.events.complete()
            stopped = self.text.finished_by_string or event.finish_reason == "stop"
            self.finish_reason = "stop" if stopped else "length"

    def speculation_metrics(self) -> dict[str, Any]:
        """Under vLLM's names, and ours by source; less of it when a stop string cut the answer."""
        accepted = {source: self._accepted.get(source, 0) for source in DRAFT_SOURCES}
        found: dict[str, Any] = {"num_accepted_draft_tokens": sum(accepted.values())}
        if self.metrics is not None:
            found |= _vllm_metrics(self.metrics)
        return {"speculative_decoding": found | {"accepted_draft_tokens_by_source": accepted}}


async def submit_all(
    requests: Sequence[Request], source: TokenSource, new_text: Callable[[], TextStream]
) -> list[Generation]:
    """Hand every request of one body to the engine; if one is refused, none goes on.

    Raises:
        ValueError: the engine refuses a request; one sentence.
        EngineUnavailableError: the engine does not run.
    """
    found: list[Generation] = []
    try:
        for index, request in enumerate(requests):
            events = await source.submit(request)
            found.append(Generation(index=index, request=request, events=events, text=new_text()))
    except BaseException:
        for generation in found:
            await generation.events.aclose()
        raise
    return found


def _vllm_metrics(metrics: RequestMetrics) -> dict[str, Any]:
    steps, accepted = sum(metrics.steps.values()), sum(metrics.accepted.values())
    drafts = sum(metrics.acceptance_histogram)
    return {
        "num_spec_steps": drafts,
        "num_draft_tokens": metrics.num_draft_tokens,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
        "draft_acceptance_rate": _ratio(accepted, metrics.num_draft_tokens),
        "acceptance_histogram": list(metrics.acceptance_histogram),
        "verifier_passes": steps,
        "block_efficiency": 1 + accepted / steps if steps else 1.0,
        "share": {source: count / steps for source, count in metrics.steps.items()},
        "accepted_length": {
            source: metrics.accepted.get(source, 0) / count
            for source, count in metrics.steps.items()
            if source != "plain"
        },
    }


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 0.0


def total_usage(generations: Sequence[Generation], num_choices: int) -> Usage:
    """Tokens so far; a prompt with several choices counts once, as in OpenAI's API."""
    prompts = generations[::num_choices]
    prompt_tokens = sum(len(generation.request.prompt_ids) for generation in prompts)
    completion_tokens = sum(generation.num_tokens for generation in generations)
    cached = max((g.metrics.cached_tokens for g in generations if g.metrics is not None), default=0)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=min(cached, prompt_tokens)),
    )


async def merged(
    generations: Sequence[Generation],
) -> AsyncGenerator[tuple[Generation, Piece]]:
    """The pieces of all as they come. The first failure ends all; closing early cancels all."""
    queue: asyncio.Queue[tuple[Generation, Piece] | BaseException | None] = asyncio.Queue()

    async def read(generation: Generation) -> None:
        try:
            async with aclosing(generation.pieces()) as pieces:
                async for piece in pieces:
                    queue.put_nowait((generation, piece))
        except Exception as error:  # noqa: BLE001 - handed to the reader, whatever it is
            queue.put_nowait(error)
        queue.put_nowait(None)

    tasks = [asyncio.create_task(read(generation)) for generation in generations]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
