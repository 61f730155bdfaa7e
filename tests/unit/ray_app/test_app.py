"""The HTTP application with a fake engine: both forms of an answer, the key, and every error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.records import FinishReason, Request, TokenEvent, TokenSource
from engine.tokenizer import Tokenizer, load_tokenizer
from ray_app.app import build_app
from ray_app.chat import ChatModel
from ray_app.engine_client import EngineUnavailableError
from ray_app.supervisor import Status
from tests.support.tiny import EOS_ID, LLAMA2, write_checkpoint

BODY = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = "grüße 🙂!"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("model")
    return load_tokenizer(write_checkpoint(directory, LLAMA2))


class FakeBackend:
    """Answers with ``TEXT``, two bytes an event, and the end-of-text token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.status = Status(state="ready")
        self.dies_after: int | None = None
        self.requests: list[Request] = []
        self._tokenizer = tokenizer

    @property
    def model(self) -> ChatModel:
        return ChatModel(name="tiny", tokenizer=self._tokenizer, max_model_len=99, created=1)

    @property
    def source(self) -> FakeBackend:
        if self.status.state != "ready":
            raise EngineUnavailableError(self.status.detail)
        return self

    async def submit(self, request: Request) -> AsyncGenerator[TokenEvent]:
        if len(request.prompt_ids) > 60:
            raise ValueError(f"the prompt has {len(request.prompt_ids)} tokens")
        self.requests.append(request)
        return self._events(request)

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


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    return FakeBackend(tokenizer)


def call(
    backend: FakeBackend, method: str, path: str, *, api_key: str | None = None, **options: Any
) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(build_app(backend, api_key))
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


def test_the_answer_has_no_end_token_and_counts_it(backend: FakeBackend) -> None:
    answer = chat(backend).json()
    assert answer["object"] == "chat.completion"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT}
    assert choice["finish_reason"] == "stop"
    prompt, output = len(backend.requests[0].prompt_ids), len(TEXT.encode()) + 1
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }


@pytest.mark.parametrize("max_tokens", [1, 4, 8, 99])
def test_a_stream_says_what_the_whole_answer_says(backend: FakeBackend, max_tokens: int) -> None:
    whole = chat(backend, max_tokens=max_tokens).json()["choices"][0]
    chunks = events(chat(backend, max_tokens=max_tokens, stream=True))
    assert deltas(chunks) == whole["message"]["content"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0] == {
        "index": 0,
        "delta": {},
        "finish_reason": whole["finish_reason"],
        "logprobs": None,
    }
    assert chunks[-1] == "[DONE]"


def test_the_stream_carries_usage_only_when_asked(backend: FakeBackend) -> None:
    assert all("usage" not in chunk for chunk in events(chat(backend, stream=True))[:-1])
    chunks = events(chat(backend, stream=True, stream_options={"include_usage": True}))
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"] == chat(backend).json()["usage"]


def test_a_death_midway_ends_the_stream_with_an_error_and_no_done(backend: FakeBackend) -> None:
    backend.dies_after = 4
    chunks = events(chat(backend, stream=True))
    assert chunks[-1]["error"]["message"] == "verifier rank 1 died"
    assert chat(backend).status_code == 503


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"temperature": 1}, 400, "temperature", "temperature is not supported yet"),
        ({"typo": 1}, 400, "typo", "unknown field typo"),
        ({"messages": []}, 400, "messages", "at least 1 item"),
        ({"messages": [{"role": "user"}]}, 400, "messages.0.content", "required"),
        ({"messages": [{"role": "user", "content": "x" * 99}]}, 400, "messages", "the prompt has"),
        ({"model": "other"}, 404, "model", "served is 'tiny'"),
    ],
)
def test_a_bad_request_is_one_sentence_that_names_the_field(
    backend: FakeBackend, fields: dict[str, Any], status: int, param: str, words: str
) -> None:
    for stream in (False, True):
        response = chat(backend, stream=stream, **fields)
        assert response.status_code == status
        error = response.json()["error"]
        assert error["param"] == param
        assert words in error["message"]


@pytest.mark.parametrize("content", [b"{", b"", b"3", b"[]"])
def test_a_body_that_is_no_object_is_refused(backend: FakeBackend, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = call(backend, "POST", "/v1/chat/completions", content=content, headers=headers)
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


def test_unknown_routes_and_methods_answer_in_the_same_shape(backend: FakeBackend) -> None:
    assert call(backend, "GET", "/v2").json()["error"]["type"] == "not_found_error"
    assert call(backend, "GET", "/v1/chat/completions").status_code == 405


def test_models_lists_the_one_served(backend: FakeBackend) -> None:
    [card] = call(backend, "GET", "/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", 99)
    assert chat(backend, model="tiny").status_code == 200


def test_the_key_guards_the_api_but_not_the_health(backend: FakeBackend) -> None:
    for header, status in [({}, 401), ("Bearer no", 401), ("Bearer ké", 401), ("Bearer k", 200)]:
        headers = {"Authorization": header.encode()} if isinstance(header, str) else {}
        for path in ("/v1/models", "/v1/chat/completions"):
            method = "GET" if path.endswith("models") else "POST"
            body = {} if method == "GET" else {"json": BODY}
            response = call(backend, method, path, api_key="k", headers=headers, **body)
            assert response.status_code == status
    assert call(backend, "GET", "/health", api_key="k").status_code == 200


def test_health_is_green_only_when_ready(backend: FakeBackend) -> None:
    assert call(backend, "GET", "/health").json() == {"status": "ready", "detail": ""}
    backend.status = Status(state="failed", detail="verifier rank 1 died")
    response = call(backend, "GET", "/health")
    assert (response.status_code, response.json()["detail"]) == (503, "verifier rank 1 died")
    refused = chat(backend)
    assert refused.status_code == 503
    assert refused.json()["error"]["message"] == "verifier rank 1 died"
    assert refused.headers["Retry-After"]
