"""The Ray Serve deployment over real HTTP, real ranks and a tiny model."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.config import EngineConfig
from ray_app import server
from ray_app.config import ServerConfig
from tests.serve.conftest import MAX_MODEL_LEN
from tests.support.leftovers import living_actors, living_processes, placement_groups

pytestmark = [pytest.mark.ray, pytest.mark.slow]

KEY = "key"
LONG = {"max_tokens": MAX_MODEL_LEN, "ignore_eos": True}


@pytest.fixture(scope="module")
def handle(cluster: None, engine_config: EngineConfig) -> Iterator[server.Handle]:  # noqa: ARG001
    config = ServerConfig(
        engine=engine_config, port=_free_port(), api_key=KEY, served_model_name="tiny"
    )
    deployed = server.deploy(config)
    status = server.wait_started(deployed, threading.Event())
    assert status.state == "ready", status.detail
    places = deployed.places.remote().result()
    _URLS.append(f"http://127.0.0.1:{config.port}")
    yield deployed
    server.undeploy()
    assert living_processes(place.pid for place in places) == []
    assert living_actors("VerifierRank") == []
    assert placement_groups() == []


_URLS: list[str] = []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def client(handle: server.Handle) -> Iterator[httpx.Client]:  # noqa: ARG001
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=_URLS[-1], headers=headers, timeout=60.0) as opened:
        yield opened


def _body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}]
    return {"messages": messages, "max_tokens": 24, "temperature": 0, **fields}


def _chat(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json=_body(**fields))


def test_health_and_models(client: httpx.Client) -> None:
    assert client.get("/health").json()["status"] == "ready"
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["tiny"]


def test_stream_and_whole_answer_are_equal(client: httpx.Client) -> None:
    whole = _chat(client).json()
    assert 0 < whole["usage"]["completion_tokens"] <= 24
    response = _chat(client, stream=True, stream_options={"include_usage": True})
    assert response.headers["Content-Type"].startswith("text/event-stream")
    *lines, done = [line for line in response.text.split("\n\n") if line]
    assert done == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    assert text == whole["choices"][0]["message"]["content"]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    for counts in (chunks[-1]["usage"], whole["usage"]):
        del counts["prompt_tokens_details"]
    assert chunks[-1]["usage"] == whole["usage"]


def test_concurrent_requests_get_their_own_answers(client: httpx.Client) -> None:
    """Six at once over four slots; each equals the answer it gets alone."""
    prompts = [f"{number} is a number" for number in range(6)]
    alone = [_ask(client, prompt) for prompt in prompts]
    together = ["" for _ in prompts]

    def ask(index: int) -> None:
        together[index] = _ask(client, prompts[index])

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def _ask(client: httpx.Client, prompt: str) -> str:
    answer = _chat(client, messages=[{"role": "user", "content": prompt}]).json()
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_bad_requests_are_refused_through_the_whole_stack(client: httpx.Client) -> None:
    too_long = [{"role": "user", "content": "x" * MAX_MODEL_LEN}]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"temperature": -0.5}, "temperature is -0.5; it must be 0 or more"),
        ({"logit_bias": {"999999": 1}}, "logit_bias has token id 999999"),
        ({"speculative": {"method": "eagle3"}}, "drafter 'eagle3' was not loaded"),
        ({"surprise": 1}, "unknown field surprise"),
        ({"messages": too_long}, "the prompt has"),
        ({"messages": too_long, "stream": True}, f"max_model_len {MAX_MODEL_LEN}"),
    ]
    for fields, words in cases:
        response = _chat(client, **fields)
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]
    assert _chat(client, model="gpt").status_code == 404
    assert httpx.get(f"{_URLS[-1]}/v1/models").status_code == 401


def test_a_client_that_leaves_a_stream_frees_its_request(
    client: httpx.Client, handle: server.Handle
) -> None:
    with client.stream("POST", "/v1/chat/completions", json=_body(**LONG, stream=True)) as response:
        lines = response.iter_lines()  # Kept: dropping it would already close the response.
        next(lines)
        assert handle.num_requests.remote().result() == 1
    _wait_until(lambda: handle.num_requests.remote().result() == 0)


def test_a_client_that_gives_up_waiting_frees_its_request(
    client: httpx.Client, handle: server.Handle
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=_body(**LONG, stream=False), timeout=0.5)
    _wait_until(lambda: handle.num_requests.remote().result() == 0)


def _wait_until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_second_server_in_the_cluster_is_refused(
    handle: server.Handle,  # noqa: ARG001
    engine_config: EngineConfig,
) -> None:
    with pytest.raises(ValueError, match="Ray Serve already runs"):
        server.deploy(ServerConfig(engine=engine_config, port=8137, served_model_name="tiny"))
