"""Figure 3: copies under the probe's verdict."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from launch.bench.figure3 import FULL_LENGTH, by_verdict, ratio, write_figure3
from tests.unit.launch.bench.runs import record

STEPS = [
    asdict(record(source="copy", accepted=accepted, probe_score=score))
    for accepted, score in ((20, 0.9), (20, 0.8), (3, 0.6), (0, 0.7), (20, 0.2), (0, 0.1), (5, 0.0))
]
OTHERS = [asdict(record(source="neural", accepted=4, probe_score=0.9))]


def test_copies_are_grouped_by_the_verdict_at_their_step() -> None:
    on, off = by_verdict(STEPS + OTHERS, 0.5)
    assert (on.copies, on.full, on.mean_accepted) == (4, 2, 43 / 4)
    assert (off.copies, off.full) == (3, 1)
    assert off.histogram[0] == off.histogram[5] == off.histogram[FULL_LENGTH] == 1
    assert ratio(on, off) == pytest.approx(1.5)
    assert ratio(on, by_verdict([], 0.5)[1]) is None


def test_figure_is_written_with_its_numbers(tmp_path: Path) -> None:
    found = write_figure3(STEPS, 0.5, tmp_path)
    assert json.loads((tmp_path / "figure3.json").read_text())["ratio"] == found["ratio"]
    assert (tmp_path / "figure3.png").stat().st_size > 1000
