"""Completions: the older API, prompts in (texts or token ids), texts out."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

from engine.records import TokenLogprobs
from engine.tokenizer import Tokenizer
from ray_app.generation import Generation, TokenSource, merged, submit_all, total_usage
from ray_app.openai_requests import CompletionRequest
from ray_app.openai_responses import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    SourceRun,
)
from ray_app.request_options import (
    ServedModel,
    engine_request,
    grammar_of,
    sampling_params,
    text_options,
    with_choice,
)
from ray_app.sse import END_OF_STREAM, data
from ray_app.text_stream import Run, TextStream

MAX_PROMPTS = 512
"""Prompts times choices of one body."""


@dataclass(slots=True, kw_only=True)
class Completions:
    """One body's accepted requests."""

    id: str
    created: int
    body: CompletionRequest
    model: ServedModel
    generations: list[Generation]


async def begin_completions(
    body: CompletionRequest, model: ServedModel, source: TokenSource
) -> Completions:
    """Tokenize, and hand every prompt and choice to the engine.

    Raises:
        ValueError: the engine refuses a request; one sentence.
        EngineUnavailableError: the engine does not run.
    """
    prompts = [_token_ids(prompt, model.tokenizer) for prompt in body.prompts]
    if len(prompts) * body.n > MAX_PROMPTS:
        raise ValueError(f"prompts times n is {len(prompts) * body.n}; it must be {MAX_PROMPTS}")
    params = sampling_params(
        body,
        model,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        grammar=grammar_of(body.response_format),
    )
    completion_id = f"cmpl-{uuid.uuid4().hex}"
    choices = ((prompt, choice) for prompt in prompts for choice in range(body.n))
    requests = [
        engine_request(
            f"{completion_id}-{index}",
            prompt,
            body,
            with_choice(params, choice),
            model,
            max_tokens=body.token_limit,
        )
        for index, (prompt, choice) in enumerate(choices)
    ]
    options = text_options(body)
    return Completions(
        id=completion_id,
        created=int(time.time()),
        body=body,
        model=model,
        generations=await submit_all(
            requests, source, lambda: TextStream(model.tokenizer, options)
        ),
    )


def _token_ids(prompt: str | list[int], tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(prompt) if isinstance(prompt, str) else prompt


async def complete(completions: Completions) -> Completion:
    """The whole reply. Raises EngineUnavailableError if the engine stops before its end."""
    collected = {g.index: _Collected() for g in completions.generations}
    async with aclosing(merged(completions.generations)) as pieces:
        async for generation, piece in pieces:
            collected[generation.index].runs += piece.runs
            collected[generation.index].logprobs += piece.logprobs
    choices = [_choice(completions, g, collected[g.index]) for g in completions.generations]
    reply = _reply(completions, choices)
    reply.usage = total_usage(completions.generations, completions.body.n)
    reply.metrics = completions.generations[0].speculation_metrics()
    return reply


@dataclass(slots=True)
class _Collected:
    """What came of one choice."""

    runs: list[Run] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


def _choice(
    completions: Completions, generation: Generation, collected: _Collected
) -> CompletionChoice:
    body, tokenizer = completions.body, completions.model.tokenizer
    text = "".join(run.text for run in collected.runs)
    prompt_ids = generation.request.prompt_ids if body.echo else ()
    logprobs = None
    if body.logprobs is not None:
        entries = [*generation.prompt_logprobs, *collected.logprobs]
        logprobs = _logprobs(prompt_ids[:1], entries, tokenizer, body.logprobs)
    return CompletionChoice(
        index=generation.index,
        text=tokenizer.decode(prompt_ids) + text if body.echo else text,
        finish_reason=generation.finish_reason,
        stop_reason=generation.stop_reason,
        logprobs=logprobs,
        sources=_sources(completions, collected.runs),
    )


async def stream_completions(completions: Completions) -> AsyncGenerator[str]:
    """The reply as server-sent events."""
    body, tokenizer = completions.body, completions.model.tokenizer
    offsets = dict.fromkeys((g.index for g in completions.generations), 0)
    async with aclosing(merged(completions.generations)) as pieces:
        async for generation, piece in pieces:
            logprobs = None
            if body.logprobs is not None:
                offset = offsets[generation.index]
                logprobs = _logprobs((), piece.logprobs, tokenizer, body.logprobs, offset)
                offsets[generation.index] += len(piece.text)
            choice = CompletionChoice(
                index=generation.index,
                text=piece.text,
                finish_reason=generation.finish_reason if piece.is_last else None,
                stop_reason=piece.stop_reason,
                logprobs=logprobs,
                sources=_sources(completions, piece.runs),
            )
            yield data(_reply(completions, [choice]))
    if body.shows_usage:
        last = _reply(completions, [])
        last.usage = total_usage(completions.generations, body.n)
        last.metrics = completions.generations[0].speculation_metrics()
        yield data(last)
    yield END_OF_STREAM


def _reply(completions: Completions, choices: list[CompletionChoice]) -> Completion:
    body = completions.body
    return Completion(
        id=completions.id,
        created=completions.created,
        model=completions.model.name,
        choices=choices,
        usage=total_usage(completions.generations, body.n) if body.always_shows_usage else None,
    )


def _sources(completions: Completions, runs: list[Run]) -> list[SourceRun] | None:
    if not completions.body.return_sources:
        return None
    return [SourceRun(source=run.source, text=run.text) for run in runs]


def _logprobs(
    unscored: Iterable[int],
    entries: list[TokenLogprobs],
    tokenizer: Tokenizer,
    num_top: int,
    offset: int = 0,
) -> CompletionLogprobs:
    """Lists side by side; ``unscored`` is an echoed prompt's first token."""
    found = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])

    def show(token_id: int) -> str:
        return tokenizer.decode([token_id], skip_special_tokens=False)

    for token_id in unscored:
        _append(found, show(token_id), None, None, offset)
        offset += len(show(token_id))
    for entry in entries:
        top = {show(token): logprob for token, logprob in entry.top[:num_top]}
        top[show(entry.token_id)] = entry.logprob
        _append(found, show(entry.token_id), entry.logprob, top, offset)
        offset += len(show(entry.token_id))
    return found


def _append(
    found: CompletionLogprobs,
    token: str,
    logprob: float | None,
    top: dict[str, float] | None,
    offset: int,
) -> None:
    found.tokens.append(token)
    found.token_logprobs.append(logprob)
    found.top_logprobs.append(top)
    found.text_offset.append(offset)
