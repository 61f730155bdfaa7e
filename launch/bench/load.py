"""``python -m launch.bench.load``: throughput of a running server under concurrent clients.

Speculation is switched per request, so plain and speculative rounds alternate on one server and
see the same machine. Every client asks one prompt after the other and reads its stream to the end.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from launch.bench.workloads import load_conversations
from launch.cli import parse, user_errors

PROG = "python -m launch.bench.load"

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFlags:
    """Flags of ``python -m launch.bench.load``."""

    url: str = "http://127.0.0.1:8000"
    """The server."""
    api_key: str | None = None
    """Its key, if it has one."""
    workload: str = "humaneval"
    """humaneval, or a JSONL file with a prompt per line."""
    concurrency: str = "1,4,16,64"
    """Numbers of clients, one after the other."""
    rounds: int = 3
    """Rounds of each kind per number of clients."""
    seconds: float = 20.0
    """Length of a round."""
    max_tokens: int = 128
    """Longest answer."""
    temperature: float = 0.0
    """Sampling temperature."""
    out: Path | None = None
    """File for the results, JSON."""


@dataclass(slots=True)
class Round:
    """What all clients of one round got."""

    speculates: bool
    seconds: float = 0.0
    tokens: int = 0
    completed: int = 0
    errors: list[str] = field(default_factory=list)
    first_token_seconds: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all clients."""
        return self.tokens / self.seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns 1 if any request failed."""
    flags = parse(LoadFlags, argv, prog=PROG, description="Throughput under concurrent clients.")
    with user_errors(PROG):
        levels = [_positive(text) for text in flags.concurrency.split(",")]
        prompts = [messages for _, messages in load_conversations(flags.workload)]
    results = {level: asyncio.run(_measure(flags, level, prompts)) for level in levels}
    _show(results)
    if flags.out is not None:
        rows = {level: [asdict(one) for one in rounds] for level, rounds in results.items()}
        flags.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(one.errors for rounds in results.values() for one in rounds))


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"--concurrency must be numbers such as 1,4,16, not {text!r}.")
    return int(text)


async def _measure(flags: LoadFlags, level: int, prompts: Sequence[Messages]) -> list[Round]:
    """Plain and speculative rounds in turn; the first of each is a short warm-up."""
    headers = {} if flags.api_key is None else {"Authorization": f"Bearer {flags.api_key}"}
    limits = httpx.Limits(max_connections=level)
    rounds: list[Round] = []
    async with httpx.AsyncClient(
        base_url=flags.url, headers=headers, timeout=600.0, limits=limits
    ) as client:
        for number in range(2 * (flags.rounds + 1)):
            seconds = flags.seconds if number > 1 else min(5.0, flags.seconds)
            one = await _round(client, flags, level, prompts, Round(number % 2 == 1), seconds)
            if number > 1:
                rounds.append(one)
    return rounds


async def _round(
    client: httpx.AsyncClient,
    flags: LoadFlags,
    level: int,
    prompts: Sequence[Messages],
    found: Round,
    seconds: float,
) -> Round:
    """Clients start new requests for so long; the round ends with the last answer."""
    started, numbers = time.monotonic(), count()

    async def run_client() -> None:
        while time.monotonic() - started < seconds:
            await _ask(client, flags, prompts[next(numbers) % len(prompts)], found)

    await asyncio.gather(*(run_client() for _ in range(level)))
    found.seconds = time.monotonic() - started
    return found


async def _ask(
    client: httpx.AsyncClient, flags: LoadFlags, messages: Messages, found: Round
) -> None:
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": flags.max_tokens,
        "temperature": flags.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculative": {"enabled": found.speculates},
    }
    asked, first = time.monotonic(), None
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                found.errors.append((await response.aread()).decode())
                return
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    found.errors.append(event["error"]["message"])
                    return
                first = first or time.monotonic()
                if event.get("usage"):
                    found.tokens += event["usage"]["completion_tokens"]
                    found.completed += 1
                    found.first_token_seconds.append(first - asked)
    except httpx.HTTPError as error:
        found.errors.append(f"{type(error).__name__}: {error}")


def _show(results: dict[int, list[Round]]) -> None:
    table = Table("clients", "plain tok/s", "speculative tok/s", "ratio", "answers", "errors")
    for level, rounds in results.items():
        plain, speculative = (
            statistics.median(r.tokens_per_second for r in rounds if r.speculates == kind)
            for kind in (False, True)
        )
        table.add_row(
            str(level),
            f"{plain:.1f}",
            f"{speculative:.1f}",
            f"{speculative / plain:.2f}" if plain else "-",
            str(sum(one.completed for one in rounds)),
            str(sum(len(one.errors) for one in rounds)),
        )
    Console().print(table)
    errors = {error for rounds in results.values() for one in rounds for error in one.errors}
    for error in sorted(errors):
        sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    sys.exit(main())
