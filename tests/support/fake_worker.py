"""A peer's worker without a peer: echoes the prompt, or fails as its mode says."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from launch.bench.peers.protocol import Answer, Clock, serve


def load(flags: argparse.Namespace) -> tuple[Answer, dict[str, str]]:
    """Modes: plain answers, missing cannot start, dies ends without a word."""
    if flags.mode == "missing":
        raise ImportError("No module named 'peer'\nand more lines")
    if flags.mode == "dies":
        sys.exit(3)
    print("a library that prints")  # noqa: T201 - it must not reach the wire

    def answer(prompt_ids: list[int], max_tokens: int) -> dict[str, Any]:
        clock = Clock()
        clock.token()
        clock.stop()
        return clock.reply(prompt_ids[:max_tokens], num_passes=max_tokens - 1)

    return answer, {"fake": "1"}


if __name__ == "__main__":
    serve(load)
