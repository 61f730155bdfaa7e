"""Probe training: splits by prompt, finds the point that knows, reports what it measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from drafters.training.capture import NO_LABEL, CapturedStates, Point
from drafters.training.probe import (
    ProbeTrainingConfig,
    finalists,
    labelled_scores,
    quality,
    refine,
    split_prompts,
    sweep,
)
from engine.interfaces import Site

POINTS: tuple[Point, ...] = ((0, Site.ATTENTION), (0, Site.MLP), (1, Site.ATTENTION))
CONFIG = ProbeTrainingConfig(penalties=(1e-3, 1e-1), num_finalists=2)
KNOWING = 2
"""The point whose states carry the label."""


def _captured(num_prompts: int = 40, rows: int = 30, size: int = 8) -> CapturedStates:
    """Noise everywhere, but at one point the first dimension knows the label of shift 1."""
    generator = torch.Generator().manual_seed(0)
    total = num_prompts * rows
    states = torch.randn(len(POINTS), total, size, generator=generator)
    truth = (torch.rand(total, generator=generator) < 0.4).to(torch.int8)
    states[KNOWING, :, 0] += 3.0 * (truth.float() * 2 - 1)
    states[:, :, -1] = 1.0
    unrelated = (torch.rand(total, generator=generator) < 0.4).to(torch.int8)
    unrelated[::rows] = NO_LABEL
    return CapturedStates(
        points=POINTS,
        states=states.bfloat16(),
        transcripts=torch.arange(num_prompts).repeat_interleave(rows),
        labels=(unrelated, truth),
        gains=torch.where(truth == 1, 5, -1),
    )


def _ignore(_: int) -> None:
    """A progress bar nobody looks at."""


def test_split_is_by_prompt_and_a_function_of_the_seed() -> None:
    config = ProbeTrainingConfig(validation_share=0.2, seed=4)
    chosen = split_prompts(50, config)
    assert int(chosen.sum()) == 10
    assert torch.equal(chosen, split_prompts(50, config))
    assert not torch.equal(chosen, split_prompts(50, replace(config, seed=5)))


def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="2 prompts cannot be split"):
        split_prompts(2, ProbeTrainingConfig())


@pytest.mark.parametrize(
    "changes",
    [{"validation_share": 1.0}, {"penalties": ()}, {"sweep_penalty": -1.0}, {"num_finalists": 0}],
)
def test_impossible_configurations_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes)).replace("sweep_penalty", "penalties")):
        replace(ProbeTrainingConfig(), **changes)  # type: ignore[arg-type]


def test_sweep_and_refinement_find_the_point_and_the_shift_that_know() -> None:
    captured, validation = _captured(), split_prompts(40, CONFIG)
    done: list[int] = []
    swept = sweep(captured, validation, CONFIG, done.append)
    assert len(swept) == 2 * len(POINTS)
    assert sum(done) == len(POINTS)
    best = finalists(swept, CONFIG.num_finalists)
    refined = refine(captured, best, validation, CONFIG, _ignore)
    assert len(refined) == CONFIG.num_finalists * len(CONFIG.penalties)
    assert refined[0].point == POINTS[KNOWING]
    assert refined[0].label_shift == 1
    assert refined[0].auc > 0.98


def test_reported_quality_is_the_one_the_choice_was_made_by() -> None:
    captured, validation = _captured(), split_prompts(40, CONFIG)
    best = finalists(sweep(captured, validation, CONFIG, _ignore), 1)[0]
    probe = best.probe("owner/model")
    assert (probe.layer, probe.site, probe.label_shift) == (1, Site.ATTENTION, 1)
    measured = quality(probe, captured, validation[captured.transcripts])
    assert measured.auc == pytest.approx(best.auc)
    assert measured.f1 == pytest.approx(best.threshold.f1)
    assert measured.num_rows == int(validation.sum()) * 30
    assert measured.benefit_rows == int(
        ((captured.labels[1] == 1) & validation[captured.transcripts]).sum()
    )


def test_rows_without_a_label_are_left_out() -> None:
    captured, validation = _captured(), split_prompts(40, CONFIG)
    swept = sweep(captured, validation, CONFIG, _ignore)
    probe = replace(swept[0].probe("owner/model"), label_shift=0)
    scores, labels = labelled_scores(probe, captured)
    assert len(scores) == len(labels) == 40 * 29
    assert set(labels.tolist()) == {0.0, 1.0}


def test_validation_prompts_do_not_influence_the_weight() -> None:
    captured, validation = _captured(), split_prompts(40, CONFIG)
    held_out = validation[captured.transcripts]
    spoiled = captured.states.clone()
    spoiled[:, held_out] = 0.0
    first = sweep(captured, validation, CONFIG, _ignore)
    second = sweep(replace(captured, states=spoiled), validation, CONFIG, _ignore)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.weight, other.weight)
