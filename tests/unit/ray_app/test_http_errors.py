"""Every mistake is one sentence in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.support.fake_backend import (
    BODY,
    MAX_BODY,
    TOOL,
    FakeBackend,
    call,
    chat,
)


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"temperature": -1}, 400, "temperature", "temperature is -1.0; it must be 0 or more"),
        ({"top_p": 0}, 400, "top_p", "top_p is 0.0; it must be above 0"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias", "logit_bias: 'x' is no token id"),
        ({"logit_bias": {"5": 101}}, 400, "logit_bias", "it must be -100 to 100"),
        ({"bad_words": [""]}, 400, "bad_words", "bad_words must not be empty texts"),
        ({"speculative": {"method": "magic"}}, 400, None, "'method' must be one of"),
        ({"tools": [TOOL]}, 400, "tools", "chat template knows no functions"),
        ({"typo": 1}, 400, "typo", "unknown field typo"),
        ({"messages": []}, 400, "messages", "at least 1 item"),
        ({"messages": [{"role": "user"}]}, 400, "messages.0", "role 'user' needs content"),
        ({"messages": [{"role": "user", "content": "x" * 99}]}, 400, "prompt", "the prompt has"),
        ({"model": "other"}, 404, "model", "served is 'tiny'"),
    ],
)
def test_a_bad_request_is_one_sentence_that_names_the_field(
    backend: FakeBackend, fields: dict[str, Any], status: int, param: str | None, words: str
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


def test_overload_is_429_with_a_time_to_come_back(backend: FakeBackend) -> None:
    backend.is_full = True
    response = chat(backend)
    assert response.status_code == 429
    assert response.headers["Retry-After"]
    assert "no more may" in response.json()["error"]["message"]


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_body_that_is_too_large_is_not_read(backend: FakeBackend, *, is_announced: bool) -> None:
    content = json.dumps({**BODY, "user": "x" * MAX_BODY}).encode()

    async def parts() -> AsyncGenerator[bytes]:
        for start in range(0, len(content), 100):
            yield content[start : start + 100]

    headers = {"Content-Type": "application/json"}
    path, body = "/v1/chat/completions", content if is_announced else parts()
    response = call(backend, "POST", path, content=body, headers=headers)
    assert response.status_code == 413
    assert f"larger than the {MAX_BODY} bytes" in response.json()["error"]["message"]
    assert backend.requests == []
