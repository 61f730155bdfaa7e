"""Measured step times: how long one verifier pass takes as a function of its rows.

Four rows are nearly free on a CPU and two hundred cost an order of magnitude more; on eight H100s
the knee is near 130. So the row budget of a draft comes from this table, and W and D are ceilings
only.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MEASURED_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 200)


@dataclass(frozen=True, slots=True)
class StepTimeTable:
    """Step milliseconds at increasing row counts; linear in between and beyond."""

    rows: tuple[int, ...]
    milliseconds: tuple[float, ...]
    _by_rows: tuple[float, ...] = field(default=(), init=False, repr=False, compare=False)
    """Of every count up to the largest measured one: choosing asks hundreds of times a step."""

    def __post_init__(self) -> None:
        if len(self.rows) < 2 or len(self.rows) != len(self.milliseconds):
            raise ValueError("a step-time table needs two or more row counts, each with its time")
        every = tuple(self._interpolated(rows) for rows in range(self.rows[-1] + 1))
        object.__setattr__(self, "_by_rows", every)

    def at(self, rows: int) -> float:
        """Milliseconds of a pass of ``rows`` rows."""
        return self._by_rows[rows] if rows < len(self._by_rows) else self._interpolated(rows)

    def _interpolated(self, rows: int) -> float:
        right = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        left = right - 1
        share = (rows - self.rows[left]) / (self.rows[right] - self.rows[left])
        rise = self.milliseconds[right] - self.milliseconds[left]
        return max(self.milliseconds[left] + share * rise, self.milliseconds[0])


def measure_step_times(
    run_rows: Callable[[int], None],
    *,
    max_rows: int,
    repetitions: int = 7,
    row_counts: Sequence[int] = MEASURED_ROWS,
) -> StepTimeTable:
    """Time ``run_rows(n)`` for growing n: medians, and a larger block never looks cheaper."""
    rows = [count for count in row_counts if count <= max_rows] or [1]
    if len(rows) == 1:
        rows.append(max(max_rows, 2))
    milliseconds: list[float] = []
    for count in rows:
        run_rows(count)
        samples = [_timed(run_rows, count) for _ in range(repetitions)]
        milliseconds.append(max([statistics.median(samples), *milliseconds[-1:]]))
    return StepTimeTable(tuple(rows), tuple(milliseconds))


def _timed(run_rows: Callable[[int], None], count: int) -> float:
    started = time.perf_counter()
    run_rows(count)
    return (time.perf_counter() - started) * 1e3
