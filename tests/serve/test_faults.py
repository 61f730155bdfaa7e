"""Whatever dies or hangs under a stream: it goes on, and its text is the undisturbed one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from engine.config import EngineConfig
from ray_app import server
from ray_app.config import ServerConfig
from tests.support.free_port import free_port
from tests.support.http_client import health, pieces, wait_until_green
from tests.support.leftovers import living_processes, placement_groups

pytestmark = [pytest.mark.ray, pytest.mark.slow]

WATCHDOG_SECONDS = 4.0


@pytest.fixture(scope="module")
def served(cluster: None, engine_config: EngineConfig) -> Iterator[tuple[server.Handle, str]]:  # noqa: ARG001
    port = free_port()
    config = ServerConfig(
        engine=engine_config,
        port=port,
        served_model_name="tiny",
        watchdog_seconds=WATCHDOG_SECONDS,
    )
    deployed = server.deploy(config)
    assert server.wait_started(deployed, threading.Event()).state == "ready"
    yield deployed, f"http://127.0.0.1:{port}"
    server.undeploy()
    assert placement_groups() == []


@pytest.fixture(scope="module")
def truth(served: tuple[server.Handle, str]) -> str:
    """Nobody is disturbed."""
    return "".join(pieces(served[1]))


def victim(handle: server.Handle, who: str) -> int:
    if who == "replica":
        pid: int = handle.report.remote().result().pid
        return pid
    rank: int = handle.places.remote().result()[int(who[-1])].pid
    return rank


@pytest.mark.parametrize(
    ("who", "sent"),
    [
        ("rank 0", signal.SIGKILL),
        ("rank 1", signal.SIGSTOP),
        ("replica", signal.SIGKILL),
    ],
)
def test_a_stream_survives(
    served: tuple[server.Handle, str], truth: str, who: str, sent: signal.Signals
) -> None:
    """Nothing is skipped or repeated, health is red meanwhile, and nothing stays behind."""
    handle, url = served
    wait_until_green(url)
    places = handle.places.remote().result()
    stream = pieces(url)
    text = next(stream) + next(stream) + next(stream)
    os.kill(victim(handle, who), sent)
    seen: set[int] = set()
    looking = threading.Event()

    def look() -> None:
        while not looking.wait(0.05):
            seen.add(health(url))

    thread = threading.Thread(target=look)
    thread.start()
    text += "".join(stream)
    looking.set()
    thread.join()
    assert text == truth
    assert 503 in seen
    wait_until_green(url)
    assert handle.journal.remote().result().migrations >= 1
    deadline = time.monotonic() + 30.0
    while living_processes(place.pid for place in places):
        assert time.monotonic() < deadline
        time.sleep(0.1)
