"""A real drafter actor beside real ranks: killed, stopped, and never missed by a request."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.config import EngineConfig
from engine.speculation import speculation
from ray_app import server
from ray_app.config import ServerConfig
from ray_app.drafter_actor import DrafterVitals
from tests.serve.conftest import MAX_MODEL_LEN
from tests.support.eagle3_files import write_eagle3
from tests.support.leftovers import living_actors, living_processes, placement_groups
from tests.support.tiny import LLAMA33

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PROMPTS = [f"{number} and {number + 1}" for number in range(3)]


@pytest.fixture(scope="module")
def url(
    cluster: None,  # noqa: ARG001
    engine_config: EngineConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[server.Handle, str]]:
    verifier = replace(LLAMA33, max_position_embeddings=MAX_MODEL_LEN)
    head = write_eagle3(Path(tmp_path_factory.mktemp("head")), verifier)
    method = speculation("copy_spec", drafter="eagle3", model=str(head))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    config = ServerConfig(
        engine=replace(engine_config, speculation=method), port=port, served_model_name="tiny"
    )
    handle = server.deploy(config)
    status = server.wait_started(handle, threading.Event())
    assert status.state == "ready", status.detail
    yield handle, f"http://127.0.0.1:{port}"
    vitals = _vitals(handle)
    server.undeploy()
    assert living_processes([vitals.pid]) == []
    assert living_actors("DrafterActor") == []
    assert living_actors("VerifierRank") == []
    assert placement_groups() == []


def _vitals(handle: server.Handle) -> DrafterVitals:
    """The drafter's newest sign of life, waiting for a drafter if there is none."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        vitals = handle.drafter.remote().result()
        if vitals is not None:
            assert isinstance(vitals, DrafterVitals)
            return vitals
        time.sleep(0.1)
    raise AssertionError("no drafter came back")


def _answers(url: str) -> list[str]:
    def ask(prompt: str) -> str:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": 120,
            "ignore_eos": True,
        }
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120.0)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    return [ask(prompt) for prompt in PROMPTS]


def _wait_for_drafts(handle: server.Handle, url: str, *, other_than: int | None = None) -> int:
    """Ask until a drafter, another one if wanted, has really drafted; returns its process."""
    deadline = time.monotonic() + 90.0
    while time.monotonic() < deadline:
        _answers(url)
        vitals = _vitals(handle)
        if vitals.pid != other_than and vitals.num_drafts > 0:
            return vitals.pid
    raise AssertionError("the drafter was never asked")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_drafter_is_replaced_and_no_answer_changes(
    url: tuple[server.Handle, str], sent: signal.Signals
) -> None:
    handle, address = url
    pid = _wait_for_drafts(handle, address)
    before = _answers(address)
    os.kill(pid, sent)
    assert _answers(address) == before
    assert _wait_for_drafts(handle, address, other_than=pid) != pid
    assert living_processes([pid]) == []
    assert _answers(address) == before


def test_killing_it_in_the_middle_of_an_answer_changes_nothing(
    url: tuple[server.Handle, str],
) -> None:
    handle, address = url
    pid = _wait_for_drafts(handle, address)
    before = _answers(address)
    timer = threading.Timer(0.05, os.kill, (pid, signal.SIGKILL))
    timer.start()
    assert _answers(address) == before
    timer.join()
