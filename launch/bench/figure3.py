"""SwitchSD's Figure 3: how long copies are accepted where the probe is on, and where it is off.

The gate is held open, so that every match is copied whatever the probe says; each copy is put under
the probe's verdict at that step. The paper's number is the share of copies that reach full length,
with the probe on against off: 6.3 times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

PAPER_RATIO = 6.3
FULL_LENGTH = 20
"""Copied tokens at most (D)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Copies under one verdict of the probe."""

    copies: int
    full: int
    """Accepted to full length."""
    mean_accepted: float | None
    histogram: tuple[int, ...]
    """Copies by accepted tokens, from 0 to ``FULL_LENGTH``."""

    @property
    def full_share(self) -> float | None:
        """Share that is accepted to full length; None without copies."""
        return self.full / self.copies if self.copies else None


def by_verdict(steps: Iterable[Mapping[str, Any]], threshold: float) -> tuple[Verdict, Verdict]:
    """Copies where the probe is on, and where it is off."""
    on: list[int] = []
    off: list[int] = []
    for step in steps:
        if step["source"] == "copy" and step["probe_score"] is not None:
            (on if step["probe_score"] >= threshold else off).append(step["accepted"])
    return _verdict(on), _verdict(off)


def _verdict(accepted: list[int]) -> Verdict:
    histogram = [0] * (FULL_LENGTH + 1)
    for length in accepted:
        histogram[min(length, FULL_LENGTH)] += 1
    return Verdict(
        copies=len(accepted),
        full=histogram[FULL_LENGTH],
        mean_accepted=sum(accepted) / len(accepted) if accepted else None,
        histogram=tuple(histogram),
    )


def ratio(on: Verdict, off: Verdict) -> float | None:
    """Full-length share, probe on / off; None where a side has no copy or none is full."""
    if not on.full_share or not off.full_share:
        return None
    return on.full_share / off.full_share


def write_figure3(
    steps: Iterable[Mapping[str, Any]], threshold: float, directory: Path
) -> dict[str, Any]:
    """Write ``figure3.json`` and ``figure3.png``; returns the numbers."""
    on, off = by_verdict(steps, threshold)
    found = {
        "threshold": threshold,
        "on": _as_json(on),
        "off": _as_json(off),
        "ratio": ratio(on, off),
        "paper_ratio": PAPER_RATIO,
    }
    (directory / "figure3.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    _plot(on, off, directory / "figure3.png")
    return found


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "copies": verdict.copies,
        "full": verdict.full,
        "full_share": verdict.full_share,
        "mean_accepted": verdict.mean_accepted,
        "histogram": verdict.histogram,
    }


def _plot(on: Verdict, off: Verdict, path: Path) -> None:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for verdict, name, shift in ((on, "probe on", -0.2), (off, "probe off", 0.2)):
        shares = [count / max(verdict.copies, 1) for count in verdict.histogram]
        places = [length + shift for length in range(len(shares))]
        axes.bar(places, shares, width=0.4, label=f"{name}, {verdict.copies} copies")
    axes.set_xlabel("accepted tokens of a copy")
    axes.set_ylabel("share of copies")
    axes.legend()
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=120)
