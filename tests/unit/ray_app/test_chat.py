"""Chats over HTTP: both forms of an answer, and what of a body reaches the engine."""

from __future__ import annotations

import pytest

from tests.support.fake_backend import (
    TEXT,
    FakeBackend,
    chat,
    deltas,
    events,
)


def test_the_answer_has_no_end_token_and_counts_it(backend: FakeBackend) -> None:
    answer = chat(backend).json()
    assert answer["object"] == "chat.completion"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "tool_calls": None}
    assert choice["finish_reason"] == "stop"
    prompt, output = len(backend.requests[0].prompt_ids), len(TEXT.encode()) + 1
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": 0},
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


def test_fields_reach_the_engine(backend: FakeBackend) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"5": -3},
        "seed": 11,
        "stop_token_ids": [4],
        "min_tokens": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "ignore_eos": True,
        "speculative": {"enabled": False},
    }
    chat(backend, n=2, **fields)
    first, second = backend.requests
    assert first.sampling.seed == 11
    assert second.sampling.seed == 12
    assert first.sampling.logit_bias == ((5, -3.0),)
    assert (first.sampling.top_k, first.sampling.min_tokens, first.sampling.logprobs) == (7, 2, 2)
    assert first.ignore_eos
    assert first.speculation is not None
    assert first.speculation.method == "vanilla"


def test_defaults_are_openais(backend: FakeBackend) -> None:
    for _ in range(2):
        chat(backend)
    first, second = backend.requests
    assert first.sampling.temperature == 1.0
    assert first.sampling.seed != second.sampling.seed
    assert first.speculation is None
    chat(backend, top_k=-1, temperature=0)
    assert not backend.requests[-1].sampling.needs_logits


def test_a_request_may_choose_how_to_speculate(backend: FakeBackend) -> None:
    chat(backend, speculative={"num_speculative_tokens": 2})
    chat(backend, speculative={"method": "eagle3"})
    chat(backend, speculative={"method": "copy_spec", "drafter": "none"})
    kept, neural, copying = (request.speculation for request in backend.requests)
    assert kept is not None
    assert neural is not None
    assert copying is not None
    assert (kept.method, kept.drafter, kept.num_speculative_tokens) == ("switch_sd", "eagle3", 2)
    assert (neural.method, neural.drafter) == ("eagle3", "eagle3")
    assert (copying.method, copying.drafter) == ("copy_spec", "none")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_text_and_counts(backend: FakeBackend, *, stream: bool) -> None:
    """Two bytes come per event: the string ends within one, and nothing behind it leaks."""
    options = {"stream_options": {"include_usage": True}} if stream else {}
    response = chat(backend, stop=["e ", "zzz"], stream=stream, **options)
    if stream:
        *chunks, usage, done = events(response)
        assert done == "[DONE]"
        texts = [c["choices"][0]["delta"].get("content", "") for c in chunks]
        choice, text = chunks[-1]["choices"][0], "".join(texts)
    else:
        usage = response.json()
        choice = usage["choices"][0]
        text = choice["message"]["content"]
    assert text == "grüß"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "e ")
    assert usage["usage"]["completion_tokens"] == len("grüße ".encode())


def test_usage_may_come_with_every_chunk(backend: FakeBackend) -> None:
    """What guidellm and vllm bench serve ask for."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = events(chat(backend, stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == chat(backend).json()["usage"]["completion_tokens"]
