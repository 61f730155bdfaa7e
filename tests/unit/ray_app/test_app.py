"""The application: models, key, health, tokens, page."""

from __future__ import annotations

from ray_app.supervisor import Status
from tests.support.fake_backend import (
    BODY,
    TEXT,
    FakeBackend,
    call,
    chat,
)


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
    backend.state = Status(state="failed", detail="verifier rank 1 died")
    response = call(backend, "GET", "/health")
    assert (response.status_code, response.json()["detail"]) == (503, "verifier rank 1 died")
    refused = chat(backend)
    assert refused.status_code == 503
    assert refused.json()["error"]["message"] == "verifier rank 1 died"
    assert refused.headers["Retry-After"]


def test_request_ids_come_back_or_are_made(backend: FakeBackend) -> None:
    given = call(backend, "GET", "/version", headers={"X-Request-Id": "mine"})
    assert given.headers["X-Request-Id"] == "mine"
    assert given.json()["version"]
    made = [call(backend, "GET", "/health").headers["X-Request-Id"] for _ in range(2)]
    assert len(set(made)) == 2


def test_tokenize_and_detokenize_are_inverse(backend: FakeBackend) -> None:
    tokens = call(backend, "POST", "/tokenize", json={"prompt": TEXT}).json()
    assert tokens["count"] == len(tokens["tokens"])
    text = call(backend, "POST", "/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert text["prompt"] == TEXT
    wrong = call(backend, "POST", "/detokenize", json={"tokens": [10**6]})
    assert "tokens has id 1000000; this model knows" in wrong.json()["error"]["message"]
    chatted = call(backend, "POST", "/tokenize", json={"messages": BODY["messages"]}).json()
    chat(backend)
    assert chatted["tokens"] == list(backend.requests[-1].prompt_ids)


def test_page_and_metrics_need_no_key(backend: FakeBackend) -> None:
    assert "<html" in call(backend, "GET", "/", api_key="k").text
    assert "steps_total" in call(backend, "GET", "/metrics", api_key="k").text
