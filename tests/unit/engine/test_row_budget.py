"""Rows are kept while they bring more tokens per time than they cost."""

from __future__ import annotations

import pytest

from engine.candidates import merge_candidates
from engine.records import Draft
from engine.row_budget import AcceptanceEstimate, worthwhile_rows
from engine.step_time import StepTimeTable, measure_step_times

DRAFT = Draft(source="copy", match_length=3)
FREE = StepTimeTable((1, 100), (10.0, 10.0))
STEEP = StepTimeTable((1, 2, 3), (10.0, 20.0, 30.0))


def test_free_rows_are_all_kept_and_costly_ones_are_not() -> None:
    """W and D are ceilings: the step time decides."""
    tree = merge_candidates(9, [(1, 2, 3), (4, 5)], 99)
    probabilities = AcceptanceEstimate().node_probabilities(DRAFT, tree)
    assert len(worthwhile_rows(tree, probabilities, FREE).token_ids) == 6
    assert len(worthwhile_rows(tree, probabilities, STEEP).token_ids) == 1


def test_estimate_separates_the_first_token_from_further_ones() -> None:
    """Copies are wrong at once or right for long."""
    estimate = AcceptanceEstimate()
    for _ in range(200):
        for accepted in (0, 0, 0, 10):
            estimate.observe(DRAFT, accepted=accepted, deepest=10)
    _, first, second, third = estimate.node_probabilities(
        DRAFT, merge_candidates(9, [(1, 2, 3)], 9)
    )
    assert first == pytest.approx(0.25, abs=0.05)
    assert second / first > 0.95
    assert third / second > 0.95


def test_unused_source_gets_another_chance() -> None:
    """A source that failed at first must not be shut out for ever."""
    estimate, tree = AcceptanceEstimate(), merge_candidates(9, [(1,)], 9)
    for _ in range(500):
        estimate.observe(DRAFT, accepted=0, deepest=1)
    low = estimate.node_probabilities(DRAFT, tree)[1]
    for _ in range(500):
        estimate.relax(DRAFT)
    assert estimate.node_probabilities(DRAFT, tree)[1] > 10 * low


def test_table_interpolates_and_extends() -> None:
    """Row counts between and beyond the measured ones."""
    table = StepTimeTable((1, 4, 8), (10.0, 10.0, 18.0))
    assert [table.at(rows) for rows in (1, 3, 6, 12)] == [10.0, 10.0, 14.0, 26.0]


def test_measured_table_never_falls() -> None:
    """A noisy measurement must not make a larger block look cheaper."""
    table = measure_step_times(lambda _: None, max_rows=8)
    assert table.rows == (1, 2, 4, 6, 8)
    assert list(table.milliseconds) == sorted(table.milliseconds)


def test_table_needs_two_points() -> None:
    """One point has no slope."""
    with pytest.raises(ValueError, match="two or more"):
        StepTimeTable((1,), (1.0,))
