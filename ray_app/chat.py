"""From a chat request to an engine request, and from token events to an answer or a stream.

Both forms of an answer are made from the same pieces of text, so they cannot differ.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from engine.records import Request, TokenEvent
from engine.tokenizer import Tokenizer
from ray_app.engine_client import EngineUnavailableError
from ray_app.openai_schema import (
    AssistantMessage,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Choice,
    ChunkChoice,
    Delta,
    ErrorBody,
    ErrorDetail,
    FinishReason,
    Usage,
)

END_OF_STREAM = "data: [DONE]\n\n"


class Events(Protocol):
    """Token events of one request; closing them early cancels it."""

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """The events in order."""
        ...

    async def aclose(self) -> None:
        """Nobody reads any more."""
        ...


class TokenSource(Protocol):
    """What a chat needs of the engine's client."""

    async def submit(self, request: Request) -> Events:
        """Token events of an accepted request; ValueError if the engine refuses it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModel:
    """The model that answers."""

    name: str
    tokenizer: Tokenizer
    max_model_len: int
    created: int


@dataclass(slots=True, kw_only=True)
class Answer:
    """One accepted request; its counters are final when the pieces have ended."""

    id: str
    model: ChatModel
    events: Events
    prompt_tokens: int
    created: int
    completion_tokens: int = 0
    finish_reason: FinishReason | None = None

    async def pieces(self) -> AsyncGenerator[str]:
        """The text as it grows, without the end-of-text token; closing early cancels."""
        detokenizer = self.model.tokenizer.stream()
        async with aclosing(self.events) as events:
            async for event in events:
                piece = detokenizer.push(self._visible(event))
                self.completion_tokens += len(event.token_ids)
                if event.finish_reason is not None:
                    assert event.finish_reason != "cancelled", "nobody reads a cancelled request"
                    self.finish_reason = event.finish_reason
                    piece += detokenizer.finish()
                if piece:
                    yield piece

    def _visible(self, event: TokenEvent) -> tuple[int, ...]:
        return event.token_ids[:-1] if event.finish_reason == "stop" else event.token_ids

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.prompt_tokens + self.completion_tokens,
        )


async def begin(body: ChatCompletionRequest, model: ChatModel, source: TokenSource) -> Answer:
    """Tokenize, and hand the request to the engine.

    Raises:
        ValueError: the chat template or the engine refuses the request; one sentence.
        EngineUnavailableError: the engine does not run.
    """
    prompt = model.tokenizer.chat([{"role": m.role, "content": m.text} for m in body.messages])
    answer_id = f"chatcmpl-{uuid.uuid4().hex}"
    request = Request(
        request_id=answer_id,
        prompt_ids=tuple(prompt),
        max_tokens=body.token_limit or model.max_model_len,
        ignore_eos=body.ignore_eos,
    )
    return Answer(
        id=answer_id,
        model=model,
        events=await source.submit(request),
        prompt_tokens=len(prompt),
        created=int(time.time()),
    )


async def complete(answer: Answer) -> ChatCompletion:
    """The whole answer. Raises EngineUnavailableError if the engine stops before its end."""
    text = "".join([piece async for piece in answer.pieces()])
    assert answer.finish_reason is not None, "pieces end with a reason or an exception"
    choice = Choice(message=AssistantMessage(content=text), finish_reason=answer.finish_reason)
    return ChatCompletion(
        id=answer.id,
        created=answer.created,
        model=answer.model.name,
        choices=[choice],
        usage=answer.usage,
    )


async def stream(answer: Answer, *, include_usage: bool) -> AsyncGenerator[str]:
    """The answer as server-sent events.

    If the engine stops midway, the last event is an error and ``[DONE]`` does not follow, so that
    nobody takes the torso for the whole.
    """
    yield _event(answer, Delta(role="assistant", content=""))
    try:
        async with aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                yield _event(answer, Delta(content=piece))
    except EngineUnavailableError as error:
        detail = ErrorDetail(message=str(error), type="service_unavailable")
        yield f"data: {ErrorBody(error=detail).model_dump_json()}\n\n"
        return
    yield _event(answer, Delta(), answer.finish_reason)
    if include_usage:
        chunk = _chunk(answer, [])
        chunk.usage = answer.usage
        yield _data(chunk)
    yield END_OF_STREAM


def _event(answer: Answer, delta: Delta, finish_reason: FinishReason | None = None) -> str:
    return _data(_chunk(answer, [ChunkChoice(delta=delta, finish_reason=finish_reason)]))


def _chunk(answer: Answer, choices: list[ChunkChoice]) -> ChatCompletionChunk:
    return ChatCompletionChunk(
        id=answer.id, created=answer.created, model=answer.model.name, choices=choices
    )


def _data(chunk: ChatCompletionChunk) -> str:
    """OpenAI leaves out what a delta does not change, but always shows ``finish_reason``."""
    body = chunk.model_dump(mode="json", exclude_unset=False)
    for choice in body["choices"]:
        choice["delta"] = {k: v for k, v in choice["delta"].items() if v is not None}
    if chunk.usage is None:
        del body["usage"]
    return f"data: {json.dumps(body, separators=(',', ':'), ensure_ascii=False)}\n\n"
