"""Rows are kept while they bring more tokens per time than they cost."""

from __future__ import annotations

import pytest

from engine.candidates import merge_candidates
from engine.records import Draft
from engine.row_budget import (
    AcceptanceEstimate,
    RatedTree,
    given_probabilities,
    worthwhile_rows,
)
from engine.step_time import StepTimeTable, measure_step_times

DRAFT = Draft(source="copy", match_length=3)
FREE = StepTimeTable((1, 100), (10.0, 10.0))
STEEP = StepTimeTable((1, 2, 3), (10.0, 20.0, 30.0))


def test_free_rows_are_all_kept_and_costly_ones_are_not() -> None:
    """W and D are ceilings: the step time decides."""
    tree = merge_candidates(9, [(1, 2, 3), (4, 5)], 99)
    rated = RatedTree(tree, AcceptanceEstimate().node_probabilities(DRAFT, tree))
    assert len(worthwhile_rows([rated], FREE)[0].token_ids) == 6
    assert len(worthwhile_rows([rated], STEEP)[0].token_ids) == 1


def test_rows_go_to_the_likeliest_drafts_of_a_batch() -> None:
    """A budget that each sequence takes for itself would run both drafts whole."""
    table = StepTimeTable((1, 4, 5, 50), (10.0, 10.0, 30.0, 900.0))
    sure = RatedTree(merge_candidates(9, [(1, 2, 3)], 9), [1.0, 0.9, 0.8, 0.7])
    unsure = RatedTree(merge_candidates(8, [(4, 5)], 9), [1.0, 0.75, 0.1])
    kept = worthwhile_rows([unsure, sure], table)
    assert [tree.token_ids for tree in kept] == [(8,), (9, 1, 2)]


def test_a_full_batch_drafts_less_than_a_lone_stream() -> None:
    """Rows that a prompt or other sequences fill anyway make every further row dear."""
    table = StepTimeTable((1, 4, 20), (10.0, 10.0, 50.0))
    rated = RatedTree(merge_candidates(9, [(1, 2, 3)], 9), [1.0, 0.5, 0.25, 0.12])
    alone = worthwhile_rows([rated], table)[0]
    crowded = worthwhile_rows([rated] * 8, table)
    assert len(alone.token_ids) == 4
    assert all(len(tree.token_ids) == 1 for tree in crowded)


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


def test_no_given_rating_is_above_the_parents() -> None:
    """A child that looks likelier than its parent would be kept without it."""
    draft = Draft(source="merged", candidates=((7, 8),), probabilities=((0.2, 0.6),))
    tree = merge_candidates(1, draft.candidates, 9)
    ratings = given_probabilities(draft, tree)
    assert ratings == [1.0, 0.2, 0.2]
    table = StepTimeTable((1, 2, 3), (10.0, 12.5, 15.0))
    for kept in worthwhile_rows([RatedTree(tree, ratings)], table):
        assert kept.parents.count(-1) == 1
