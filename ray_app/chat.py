"""Chats: a conversation becomes engine requests, their pieces become OpenAI's reply or stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from engine.records import TokenLogprobs
from engine.tokenizer import Tokenizer
from ray_app.generation import Generation, TokenSource, merged, submit_all, total_usage
from ray_app.openai_messages import ChatMessage
from ray_app.openai_requests import ChatCompletionRequest
from ray_app.openai_responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprob,
    ChatLogprobs,
    Delta,
    SourceRun,
    TopLogprob,
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
from ray_app.text_stream import Piece, Run, TextStream
from ray_app.tool_calls import ToolCallReader, tool_format


@dataclass(slots=True, kw_only=True)
class Chat:
    """One body's accepted requests."""

    id: str
    created: int
    body: ChatCompletionRequest
    model: ServedModel
    generations: list[Generation]


async def begin_chat(body: ChatCompletionRequest, model: ServedModel, source: TokenSource) -> Chat:
    """Tokenize, and hand every choice to the engine.

    Raises:
        ValueError: the chat template or the engine refuses the request; one sentence.
        EngineUnavailableError: the engine does not run.
    """
    tools = tool_format(body, model.tokenizer)
    prompt = chat_prompt(body.messages, model.tokenizer, body)
    grammar = grammar_of(body.response_format) if tools is None else tools.grammar(body)
    params = sampling_params(body, model, logprobs=body.num_logprobs, grammar=grammar)
    chat_id = f"chatcmpl-{uuid.uuid4().hex}"
    requests = [
        engine_request(
            f"{chat_id}-{index}",
            prompt,
            body,
            with_choice(params, index),
            model,
            max_tokens=body.token_limit,
        )
        for index in range(body.n)
    ]
    options = text_options(body)
    generations = await submit_all(requests, source, lambda: TextStream(model.tokenizer, options))
    created = int(time.time())
    return Chat(id=chat_id, created=created, body=body, model=model, generations=generations)


def chat_prompt(
    messages: Sequence[ChatMessage], tokenizer: Tokenizer, body: ChatCompletionRequest | None
) -> list[int]:
    """Token ids of a conversation. Raises ``ValueError`` if the template refuses it."""
    shown = [_for_template(message) for message in messages]
    if body is None:
        return tokenizer.chat(shown)
    arguments = dict(body.chat_template_kwargs or {})
    if not body.add_generation_prompt:
        arguments["add_generation_prompt"] = False
    uses_tools = body.tools is not None and body.tool_choice != "none"
    return tokenizer.chat(
        shown,
        tools=[t.model_dump(exclude_none=True) for t in body.tools or ()] if uses_tools else None,
        continue_final_message=body.continue_final_message,
        template_arguments=arguments,
    )


def _for_template(message: ChatMessage) -> dict[str, Any]:
    fields = message.model_dump(exclude_none=True)
    return fields | {"content": message.text or ""}


async def complete_chat(chat: Chat) -> ChatCompletion:
    """The whole reply. Raises EngineUnavailableError if the engine stops before its end."""
    runs: dict[int, list[Run]] = {g.index: [] for g in chat.generations}
    logprobs: dict[int, list[TokenLogprobs]] = {g.index: [] for g in chat.generations}
    async with aclosing(merged(chat.generations)) as pieces:
        async for generation, piece in pieces:
            runs[generation.index] += piece.runs
            logprobs[generation.index] += piece.logprobs
    choices = [_choice(chat, g, runs[g.index], logprobs[g.index]) for g in chat.generations]
    return ChatCompletion(
        id=chat.id,
        created=chat.created,
        model=chat.model.name,
        choices=choices,
        usage=total_usage(chat.generations, chat.body.n),
        metrics=_metrics(chat),
    )


def _choice(
    chat: Chat, generation: Generation, runs: list[Run], logprobs: list[TokenLogprobs]
) -> ChatChoice:
    reader = _reader(chat)
    text = "".join(run.text for run in runs)
    first, rest = reader.push(text), reader.finish()
    content, calls = first.text + rest.text, [*first.calls, *rest.calls]
    message = AssistantMessage(content=content or (None if calls else ""), tool_calls=calls or None)
    return ChatChoice(
        index=generation.index,
        message=message,
        finish_reason="tool_calls" if calls else generation.finish_reason,
        stop_reason=generation.stop_reason,
        logprobs=_logprobs(chat, logprobs),
        sources=_sources(chat, runs),
    )


async def stream_chat(chat: Chat) -> AsyncGenerator[str]:
    """The reply as server-sent events."""
    readers = {generation.index: _reader(chat) for generation in chat.generations}
    for generation in chat.generations:
        opening = Delta(role="assistant", content="")
        yield _event(chat, ChatChunkChoice(index=generation.index, delta=opening))
    async with aclosing(merged(chat.generations)) as pieces:
        async for generation, piece in pieces:
            for choice in _chunk_choices(chat, generation, piece, readers[generation.index]):
                yield _event(chat, choice)
    if chat.body.shows_usage:
        last = _chunk(chat, [])
        last.usage, last.metrics = total_usage(chat.generations, chat.body.n), _metrics(chat)
        yield data(last)
    yield END_OF_STREAM


def _chunk_choices(
    chat: Chat, generation: Generation, piece: Piece, reader: ToolCallReader
) -> list[ChatChunkChoice]:
    found = reader.push(piece.text)
    if piece.is_last:
        found += reader.finish()
    choices = []
    logprobs = _logprobs(chat, piece.logprobs)
    if found.text or found.calls or logprobs is not None:
        delta = Delta(content=found.text or None, tool_calls=found.calls or None)
        choices.append(
            ChatChunkChoice(
                index=generation.index,
                delta=delta,
                logprobs=logprobs,
                sources=_sources(chat, piece.runs),
            )
        )
    if piece.is_last:
        choices.append(
            ChatChunkChoice(
                index=generation.index,
                delta=Delta(),
                finish_reason="tool_calls" if reader.num_calls else generation.finish_reason,
                stop_reason=generation.stop_reason,
            )
        )
    return choices


def _reader(chat: Chat) -> ToolCallReader:
    return ToolCallReader(tool_format(chat.body, chat.model.tokenizer))


def _event(chat: Chat, choice: ChatChunkChoice) -> str:
    return data(_chunk(chat, [choice]))


def _chunk(chat: Chat, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
    return ChatCompletionChunk(
        id=chat.id,
        created=chat.created,
        model=chat.model.name,
        choices=choices,
        usage=total_usage(chat.generations, chat.body.n) if chat.body.always_shows_usage else None,
    )


def _metrics(chat: Chat) -> dict[str, Any]:
    return chat.generations[0].speculation_metrics()


def _sources(chat: Chat, runs: list[Run]) -> list[SourceRun] | None:
    if not chat.body.return_sources:
        return None
    return [SourceRun(source=run.source, text=run.text) for run in runs]


def _logprobs(chat: Chat, entries: list[TokenLogprobs]) -> ChatLogprobs | None:
    if not chat.body.logprobs:
        return None
    tokenizer, wanted = chat.model.tokenizer, chat.body.num_logprobs or 0
    return ChatLogprobs(content=[_logprob(entry, tokenizer, wanted) for entry in entries])


def _logprob(entry: TokenLogprobs, tokenizer: Tokenizer, num_top: int) -> ChatLogprob:
    own = _top(tokenizer, entry.token_id, entry.logprob)
    top = [_top(tokenizer, token, logprob) for token, logprob in entry.top[:num_top]]
    return ChatLogprob(**own.model_dump(), top_logprobs=top)


def _top(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    return TopLogprob(token=text, logprob=logprob, bytes=list(text.encode()))
