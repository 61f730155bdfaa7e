"""The neural drafter is asked while it pays: alone yes, in a full batch no, with hysteresis."""

from __future__ import annotations

import pytest

from engine.draft_economy import (
    FIRST_TRIAL_STEPS,
    RETURN_MARGIN,
    TRIAL_STEPS,
    DraftEconomy,
    LookaheadCounts,
    TypicalTime,
)
from engine.records import Draft
from engine.row_budget import AcceptanceEstimate
from engine.step_time import StepTimeTable

TABLE = StepTimeTable((1, 6, 96), (10.0, 10.0, 100.0))
"""Six rows are free; beyond that a row costs a millisecond."""


def economy(*, accepted: int, milliseconds: float) -> DraftEconomy:
    """After many drafts of five tokens, each with so many accepted."""
    estimate = AcceptanceEstimate()
    for _ in range(300):
        estimate.observe(Draft(source="neural"), accepted=accepted, deepest=5)
    found = DraftEconomy(estimate)
    found.observe(milliseconds, 1)
    return found


def asks(found: DraftEconomy, *, batch: int) -> bool:
    return found.pays(TABLE, num_wishes=batch, depth=5, other_rows=0)


@pytest.mark.parametrize(
    ("accepted", "milliseconds", "batch", "pays"),
    [(2, 2.0, 1, True), (2, 30.0, 1, False), (0, 2.0, 1, False), (2, 2.0, 32, False)],
)
def test_asking_pays_by_what_it_brings_and_costs(
    accepted: int, milliseconds: float, batch: int, *, pays: bool
) -> None:
    assert asks(economy(accepted=accepted, milliseconds=milliseconds), batch=batch) == pays


def test_an_unknown_cost_counts_as_nothing() -> None:
    assert asks(DraftEconomy(AcceptanceEstimate()), batch=1)


def test_near_the_limit_the_decision_keeps() -> None:
    """vllm#49548: a load that swings around the limit must not switch at every step."""
    found = economy(accepted=1, milliseconds=0.0)
    cost = 0.0
    while asks(found, batch=1):
        cost += 0.1
        found.time.milliseconds = cost
    found.time.milliseconds = cost - 0.2
    assert not asks(found, batch=1), "what stopped must look clearly better to come back"
    found.time.milliseconds = cost / (1.5 * RETURN_MARGIN)
    assert asks(found, batch=1)
    found.time.milliseconds = cost - 0.2
    assert asks(found, batch=1), "what goes on needs no margin"


def test_while_it_is_off_the_drafter_is_tried_soon_and_then_ever_more_rarely() -> None:
    found = economy(accepted=0, milliseconds=50.0)
    asked = [asks(found, batch=4) for _ in range(4 * TRIAL_STEPS)]
    trials = [step for step, is_asked in enumerate(asked, start=1) if is_asked]
    gaps = [after - before for before, after in zip([0, *trials], trials, strict=False)]
    assert gaps[:3] == [FIRST_TRIAL_STEPS, 2 * FIRST_TRIAL_STEPS, 4 * FIRST_TRIAL_STEPS]
    assert gaps[-1] == TRIAL_STEPS


def test_a_lost_time_slice_says_nothing_of_the_drafter() -> None:
    """With a moving average three slow calls in six switched a drafter off for 128 steps."""
    time = TypicalTime()
    for milliseconds in (1.0, 1.0, 1.0, 1.0, 30.0, 1.0, 30.0, 30.0):
        time.observe(milliseconds)
    assert time.milliseconds == 1.0


def test_a_lookahead_that_went_badly_is_not_given_up_for_ever() -> None:
    """Deep places are only measured when they are asked for; the first place raises hope."""
    counts = LookaheadCounts(drafted=[1.0, 1.0, 1.0], accepted=[0.8, 0.0, 0.0])
    for _ in range(1_000):
        counts.observe(asked=1, drafted=1, accepted=1)
    first, second, third = counts.accepted
    assert first > second > 0.9 * first * first
    assert third > 0.9 * first * second
    for _ in range(300):
        counts.observe(asked=3, drafted=3, accepted=1)
    assert counts.accepted[1] < 0.01, "what is measured counts at once"


def test_hope_lowers_nothing() -> None:
    counts = LookaheadCounts(drafted=[1.0, 1.0], accepted=[0.1, 0.09])
    counts.observe(asked=1, drafted=1, accepted=0)
    assert counts.accepted[1] == 0.09
