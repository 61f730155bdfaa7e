"""Completions over HTTP."""

from __future__ import annotations

from typing import Any

from tests.support.fake_backend import (
    TEXT,
    FakeBackend,
    call,
    events,
)


def test_completions_take_texts_and_token_ids(backend: FakeBackend) -> None:
    forms: list[tuple[Any, int]] = [("ab", 1), (["ab", "ab"], 2), ([5, 6], 1), ([[5], [6]], 2)]
    for prompt, num_prompts in forms:
        response = call(backend, "POST", "/v1/completions", json={"prompt": prompt, "n": 2})
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(2 * num_prompts))
        assert {choice["text"] for choice in choices} == {TEXT}


def test_completions_stream(backend: FakeBackend) -> None:
    body = {"prompt": "ab", "stream": True, "return_sources": True, "max_tokens": 99}
    *chunks, done = events(call(backend, "POST", "/v1/completions", json=body))
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
    assert {run["source"] for c in chunks for run in c["choices"][0].get("sources", ())} == {
        "verifier"
    }
