"""How far drafts are accepted: from recorded traces, or from two rates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
    """Of all positions of recorded traces (JSON Lines, see docs/planning.md).

    Copies count where there was one: positions at which nothing was copied say nothing of copies.

    Raises:
        ValueError: a file that is missing or is no trace; one sentence.
    """
    drafted: list[int] = []
    copied: list[int] = []
    for path in paths:
        for entry in read_traces(path):
            drafted += [length - 1 for length in entry["acc_eagle"]["acc_len"]]
            copied += [length - 1 for length in entry["acc_ngram"]["acc_len"] if length > 1]
    return Acceptance(
        neural=survival(drafted, neural),
        copies=survival(copied, copies),
        source=f"measured on {', '.join(path.name for path in paths)}",
    )


def read_traces(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace file; raises ``ValueError`` when it is missing or no trace."""
    if not path.is_file():
        raise ValueError(f"there is no trace file {path}.")
    entries = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                for source in ("acc_eagle", "acc_ngram"):
                    list(entry[source]["acc_len"])
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"{path.name} line {number} is not a trace: {error!r}.") from None
            entries.append(entry)
    return entries
