"""How long a look-up in the copy index takes: ``python -m launch.bench.copy_index``.

Three texts of 131,072 tokens: random, repetitive (twelve different tokens) and one token
over and over, which is the worst case for an index that scans positions.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from drafters.copy_index import CopyIndex
from launch.cli import parse


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyIndexBench:
    """Sizes of the measurement."""

    length: int = 131_072
    """Tokens in the context."""
    match_length: int = 3
    """κ."""
    candidates: int = 10
    """W."""
    tokens: int = 20
    """D."""
    look_ups: int = 1000
    """Tokens appended one by one at the end, each followed by a look-up."""


def main(argv: Sequence[str] | None = None) -> None:
    """Print append and look-up times per text."""
    bench = parse(
        CopyIndexBench,
        argv,
        prog="python -m launch.bench.copy_index",
        description="Append and look-up times of the copy index.",
    )
    table = Table("text", "append µs", "look-up µs median", "look-up µs 99%")
    for name, vocabulary in (("random", 50_000), ("repetitive", 12), ("one token", 1)):
        table.add_row(name, *(f"{value:.1f}" for value in _measure(bench, vocabulary)))
    Console().print(table)


def _measure(bench: CopyIndexBench, vocabulary: int) -> tuple[float, float, float]:
    source = random.Random(0)
    text = [source.randrange(vocabulary) for _ in range(bench.length)]
    index = CopyIndex([bench.match_length], bench.tokens)
    started = time.perf_counter()
    index.append(text[: -bench.look_ups])
    append = (time.perf_counter() - started) / (bench.length - bench.look_ups)
    times = []
    for token in text[-bench.look_ups :]:
        index.append([token])
        started = time.perf_counter()
        index.continuations(
            match_length=bench.match_length,
            max_candidates=bench.candidates,
            max_tokens=bench.tokens,
        )
        times.append(time.perf_counter() - started)
    return (
        append * 1e6,
        statistics.median(times) * 1e6,
        statistics.quantiles(times, n=100)[-1] * 1e6,
    )


if __name__ == "__main__":
    main()
