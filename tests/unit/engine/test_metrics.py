"""Metrics: each definition on steps small enough to count by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score as sklearn_f1
from sklearn.metrics import roc_auc_score

from engine import metrics
from engine.metrics import Timing
from engine.records import Source, StepRecord


def step(source: Source, *, accepted: int = 0, output: int | None = None) -> StepRecord:
    return StepRecord(
        request="r",
        step=0,
        source=source,
        drafted=5 if source == "copy" else 0,
        rows=6,
        accepted=accepted,
        output=accepted + 1 if output is None else output,
        draft_ms=0.5,
        verify_ms=10.0,
    )


STEPS = [
    step("prefill", output=1),
    step("copy", accepted=4),
    step("copy", accepted=0),
    step("plain"),
    step("neural", accepted=2),
]


def test_accepted_length_excludes_the_verifiers_own_token() -> None:
    assert metrics.accepted_length(STEPS) == 6 / 4
    assert metrics.accepted_length(STEPS, "copy") == 2
    assert metrics.accepted_length(STEPS, "neural") == 2


def test_block_efficiency_includes_it_and_is_one_more() -> None:
    efficiency = metrics.block_efficiency(STEPS)
    assert efficiency == 10 / 4
    assert efficiency == 1 + (metrics.accepted_length(STEPS) or 0)


def test_prefill_is_no_decode_step() -> None:
    assert metrics.block_efficiency(STEPS[:1]) is None
    assert metrics.shares(STEPS[:1]) == dict.fromkeys(metrics.DECODE_SOURCES)


def test_shares_sum_to_one() -> None:
    found = metrics.shares(STEPS)
    assert found == {"copy": 0.5, "neural": 0.25, "merged": 0.0, "plain": 0.25}


def test_false_copy_rate_counts_empty_copy_steps_only() -> None:
    assert metrics.false_copy_rate(STEPS) == 0.5
    assert metrics.false_copy_rate([step("plain")]) is None


def test_macro_weighs_prompts_and_micro_weighs_tokens() -> None:
    timings = [Timing(num_tokens=10, seconds=1.0), Timing(num_tokens=90, seconds=3.0)]
    rates = metrics.tokens_per_second(timings)
    assert rates.macro == pytest.approx((10 + 30) / 2)
    assert rates.micro == pytest.approx(100 / 4)


def test_speedup_is_the_wall_time_ratio_when_answers_are_equal() -> None:
    vanilla = [Timing(num_tokens=10, seconds=2.0), Timing(num_tokens=20, seconds=4.0)]
    ours = [Timing(num_tokens=10, seconds=1.0), Timing(num_tokens=20, seconds=1.0)]
    speedup = metrics.speedup(ours, vanilla)
    assert speedup.micro == pytest.approx(6 / 2)
    assert speedup.macro == pytest.approx(15 / 5)


def test_no_time_is_no_rate() -> None:
    assert metrics.tokens_per_second([Timing(num_tokens=0, seconds=0.0)]).micro is None
    assert metrics.speedup([], []).macro is None


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auc_and_f1_equal_the_reference(pairs: list[tuple[int, bool]]) -> None:
    """Ties are the trap: scores take six values only."""
    scores, labels = [float(score) for score, _ in pairs], [label for _, label in pairs]
    if len(set(labels)) == 2:
        assert metrics.roc_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores))
    else:
        assert metrics.roc_auc(scores, labels) is None
    predictions = [score >= 3 for score in scores]
    reference = sklearn_f1(labels, predictions, zero_division=0.0)
    assert (metrics.f1_score(predictions, labels) or 0.0) == pytest.approx(reference)
