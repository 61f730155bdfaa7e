"""Counters add up over engines, and a snapshot no longer changes."""

from __future__ import annotations

from dataclasses import asdict

from engine.counters import EngineCounters
from engine.records import StepRecord


def record(*, drafted: int, accepted: int, score: float | None = 0.5) -> StepRecord:
    return StepRecord(
        request="r",
        step=1,
        source="copy",
        drafted=drafted,
        rows=drafted + 1,
        accepted=accepted,
        output=accepted + 1,
        draft_ms=1.0,
        verify_ms=5.0,
        probe_score=score,
        reason="matched",
    )


STEPS = [
    record(drafted=4, accepted=3),
    record(drafted=6, accepted=0),
    record(drafted=2, accepted=2),
]


def counted(steps: list[StepRecord]) -> EngineCounters:
    found = EngineCounters()
    for step in steps:
        found.observe([step], plain_seconds=0.004)
    return found


def test_two_engines_count_what_one_would() -> None:
    """Catches a field that is forgotten, or added twice."""
    together = asdict(counted(STEPS[:1]) + counted(STEPS[1:]))
    alone = asdict(counted(STEPS))
    for name in ("draft_seconds", "verify_seconds", "saved_seconds"):
        assert abs(together.pop(name) - alone.pop(name)) < 1e-12
    assert together == alone


def test_a_snapshot_no_longer_changes() -> None:
    running = counted(STEPS[:2])
    before = running.snapshot()
    expected = asdict(before)
    running.observe([STEPS[2]], plain_seconds=None)
    assert asdict(before) == expected
    assert asdict(running) != expected


def test_positions_are_counted_from_the_first() -> None:
    assert counted(STEPS).sources["copy"].accepted_per_pos == [2, 2, 1]


def test_a_pass_with_prompt_rows_says_nothing_about_time_saved() -> None:
    found = EngineCounters()
    prefill = StepRecord(
        request="p",
        step=1,
        source="prefill",
        drafted=0,
        rows=64,
        accepted=0,
        output=0,
        draft_ms=0.0,
        verify_ms=90.0,
    )
    found.observe([STEPS[0], prefill], plain_seconds=0.004)
    assert found.saved_seconds == found.verify_seconds == 0.0
    assert found.num_steps == 1
