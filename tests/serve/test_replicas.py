"""Two replicas behind one ingress."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from ray_app import server
from ray_app.config import ServerConfig
from tests.support.free_port import free_port
from tests.support.http_client import pieces, wait_until_green

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_killed_replicas_stream_goes_on_at_the_other(
    cluster: None,  # noqa: ARG001
    engine_config: EngineConfig,
) -> None:
    """Two replicas of one rank each; both count for the metrics."""
    port = free_port()
    config = ServerConfig(
        engine=replace(engine_config, tensor_parallel_size=1),
        port=port,
        served_model_name="tiny",
        data_parallel_size=2,
    )
    handle = server.deploy(config)
    url = f"http://127.0.0.1:{port}"
    try:
        assert server.wait_started(handle, threading.Event()).state == "ready"
        wait_until_green(url)
        whole = "".join(pieces(url))
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda _: "".join(pieces(url)), range(16))
            os.kill(busy_replica(handle), signal.SIGKILL)
            assert list(found) == [whole] * 16
        assert handle.journal.remote().result().migrations >= 1
    finally:
        server.undeploy()


def busy_replica(handle: server.Handle) -> int:
    """The process of the replica that works on a request."""
    for _ in range(200):
        report = handle.report.remote().result()
        if report.num_requests:
            pid: int = report.pid
            return pid
    raise AssertionError("no replica works")
