"""How far drafts are accepted: from recorded traces, or from two rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.traces import load_traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Chance that at least 1, 2, ... tokens of a draft are accepted, by who drafts."""

    neural: tuple[float, ...]
    copies: tuple[float, ...]
    source: str
    """Measured on which traces, or assumed."""


def geometric(first: float, further: float, length: int) -> tuple[float, ...]:
    """The first token is right with one chance, each further one with another."""
    return tuple(first * further**place for place in range(length))


ASSUMED = Acceptance(
    neural=geometric(0.70, 0.72, 7),
    copies=geometric(0.55, 0.93, 20),
    source="assumed: 0.70, then 0.72 per drafted token; 0.55, then 0.93 per copied token",
)


def survival(accepted: Iterable[int], length: int) -> tuple[float, ...]:
    """Share of drafts of which at least 1 to ``length`` tokens were accepted."""
    lengths = list(accepted)
    return tuple(
        sum(one > place for one in lengths) / max(len(lengths), 1) for place in range(length)
    )


def from_traces(paths: Sequence[Path], *, neural: int = 7, copies: int = 20) -> Acceptance:
    """Of all positions of recorded traces (``launch/traces.py``).

    Copies count where there was one: positions at which nothing was copied say nothing of copies.

    Raises:
        ValueError: a file that is missing or is no trace; one sentence.
    """
    traces = [trace for path in paths for trace in load_traces(path)]
    drafted = [length - 1 for trace in traces for length in trace.neural_lengths]
    copied = [length - 1 for trace in traces for length in trace.copy_lengths if length > 1]
    return Acceptance(
        neural=survival(drafted, neural),
        copies=survival(copied, copies),
        source=f"measured on {', '.join(path.name for path in paths)}",
    )
