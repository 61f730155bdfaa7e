"""The HTTP application over an engine that always says the same, and helpers to talk to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx

from engine.config import EngineConfig
from engine.records import FinishReason, Request, TokenEvent, TokenSource
from engine.speculation import speculation
from engine.tokenizer import Tokenizer
from ray_app.app import build_app
from ray_app.config import ServerConfig
from ray_app.engine_client import EngineUnavailableError
from ray_app.http_errors import OverloadedError
from ray_app.request_options import ServedModel
from ray_app.supervisor import Status
from tests.support.tiny import EOS_ID

MAX_BODY = 4_000
TOOL = {"type": "function", "function": {"name": "add"}}
BODY = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = "grüße 🙂!"


class FakeEvents:
    """A generator as ``generation.Events``."""

    def __init__(self, events: AsyncGenerator[TokenEvent]) -> None:
        self._events = events

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self._events

    def complete(self) -> None:
        """Nobody asks."""

    async def aclose(self) -> None:
        await self._events.aclose()


class FakeBackend:
    """Answers with ``TEXT``, two bytes an event, and the end-of-text token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.state = Status(state="ready")
        self.is_full = False
        self.dies_after: int | None = None
        self.requests: list[Request] = []
        self._tokenizer = tokenizer

    @property
    def model(self) -> ServedModel:
        return ServedModel(
            name="tiny",
            tokenizer=self._tokenizer,
            max_model_len=99,
            created=1,
            speculation=speculation("switch_sd", drafter="eagle3"),
        )

    @property
    def source(self) -> FakeBackend:
        if self.state.state != "ready":
            raise EngineUnavailableError(self.state.detail)
        if self.is_full:
            raise OverloadedError("9 requests run or wait, and no more may")
        return self

    async def status(self) -> Status:
        return self.state

    async def metrics_text(self) -> str:
        return "switchsteer:steps_total 1\n"

    async def submit(self, request: Request) -> FakeEvents:
        if len(request.prompt_ids) > 60:
            raise ValueError(f"the prompt has {len(request.prompt_ids)} tokens")
        self.requests.append(request)
        return FakeEvents(self._events(request))

    async def _events(self, request: Request) -> AsyncGenerator[TokenEvent]:
        ids = [*self._tokenizer.encode(TEXT), EOS_ID][: request.max_tokens]
        for index in range(0, len(ids), 2):
            if index == self.dies_after:
                raise EngineUnavailableError("verifier rank 1 died")
            piece = tuple(ids[index : index + 2])
            is_last = index + 2 >= len(ids)
            reason: FinishReason = "stop" if piece[-1] == EOS_ID else "length"
            own: TokenSource = "verifier"
            yield TokenEvent(
                request_id=request.request_id,
                token_ids=piece,
                sources=tuple(own for _ in piece),
                finish_reason=reason if is_last else None,
            )


def call(
    backend: FakeBackend, method: str, path: str, *, api_key: str | None = None, **options: Any
) -> httpx.Response:
    async def send() -> httpx.Response:
        config = ServerConfig(
            engine=EngineConfig(model="tiny"),
            served_model_name="tiny",
            api_key=api_key,
            max_body_bytes=MAX_BODY,
        )
        transport = httpx.ASGITransport(build_app(backend, config))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


def chat(backend: FakeBackend, **fields: Any) -> httpx.Response:
    return call(backend, "POST", "/v1/chat/completions", json={**BODY, **fields})


def events(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def deltas(chunks: list[Any]) -> str:
    choices = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)
