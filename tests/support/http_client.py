"""A client that reads a long seeded stream, and one that looks at the health."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 1200,
    "ignore_eos": True,
    "temperature": 0.8,
    "seed": 5,
    "stream": True,
}


def pieces(url: str) -> Iterator[str]:
    """The text of a stream; an error in it fails the test."""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY, timeout=90.0) as response:
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            for choice in event["choices"]:
                yield choice["delta"].get("content", "")


def health(url: str) -> int:
    return httpx.get(f"{url}/health", timeout=30.0).status_code


def wait_until_green(url: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while health(url) != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
