"""The worker's side of the wire; standard library only, for any Python that has the peer.

A worker says whether it is ready, then answers one JSON line per line until its input ends. What it
prints otherwise goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import IO, Any

Answer = Callable[[list[int], int], dict[str, Any]]


class Clock:
    """Wall and processor seconds of the two phases of one answer."""

    def __init__(self) -> None:
        self.start = self.first = self.end = (time.perf_counter(), time.process_time())
        self._has_first = False

    def token(self) -> None:
        """Note that tokens arrived; only the first time counts."""
        if not self._has_first:
            self._has_first = True
            self.first = (time.perf_counter(), time.process_time())

    def stop(self) -> None:
        """The answer is complete."""
        self.token()
        self.end = (time.perf_counter(), time.process_time())

    def reply(self, token_ids: list[int], *, num_passes: int) -> dict[str, Any]:
        """The answer's line."""
        return {
            "token_ids": token_ids,
            "prefill_seconds": self.first[0] - self.start[0],
            "decode_seconds": self.end[0] - self.first[0],
            "prefill_cpu_seconds": self.first[1] - self.start[1],
            "decode_cpu_seconds": self.end[1] - self.first[1],
            "num_passes": num_passes,
        }


def worker_flags() -> argparse.Namespace:
    """Flags of a worker script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    return parser.parse_args()


def take_stdout() -> IO[str]:
    """Keep the wire to ourselves: whatever a library prints goes to stderr from now on."""
    wire = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return wire


def send(wire: IO[str], fields: dict[str, Any]) -> None:
    """One line."""
    wire.write(json.dumps(fields) + "\n")
    wire.flush()


def serve(load: Callable[[argparse.Namespace], tuple[Answer, dict[str, str]]]) -> None:
    """Load the peer, say so or why not in one sentence, and answer until the input ends."""
    flags, wire = worker_flags(), take_stdout()
    try:
        answer, versions = load(flags)
    except Exception as error:  # noqa: BLE001 - whatever the peer raises is its reason
        send(wire, {"error": _sentence(error)})
        return
    send(wire, {"versions": versions})
    for line in sys.stdin:
        request = json.loads(line)
        send(wire, answer(request["prompt_ids"], request["max_tokens"]))


def _sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"it cannot start, {type(error).__name__}: {lines[0] if lines else 'no reason given'}"
