"""Gate thresholds: the replay walks as the engine steps, and the threshold keeps what pays."""

from __future__ import annotations

import pytest
import torch

from drafters.training.capture import CapturedStates, Transcript
from drafters.training.gate import RecordedAnswer, choose_threshold, record_answers, replay
from engine.interfaces import Site
from engine.probe import Probe


def test_replay_counts_passes_copies_and_empty_copies() -> None:
    # 0: a copy of 2 tokens, to token 3; 3: an empty copy; 4: no match; 5 is the last token.
    answer = RecordedAnswer(scores=[0.9, 0.9, 0.9, 0.4, 0.9, 0.9], gains=[2, 1, 0, 0, -1, 3])
    always = replay([answer], 0.0)
    assert (always.num_passes, always.num_copies, always.num_empty_copies) == (3, 2, 1)
    assert always.empty_share == pytest.approx(0.5)
    gated = replay([answer], 0.5)
    assert (gated.num_passes, gated.num_copies, gated.num_empty_copies) == (3, 1, 0)
    closed = replay([answer], 1.0)
    assert (closed.num_passes, closed.num_copies, closed.empty_share) == (5, 0, 0.0)


def test_threshold_is_the_highest_that_keeps_the_tokens_per_pass() -> None:
    empty = RecordedAnswer(scores=[0.3] * 40, gains=[0] * 40)
    useful = RecordedAnswer(scores=[0.7] * 40, gains=[1] * 40)
    always, chosen = choose_threshold([empty, useful])
    assert chosen.threshold == 0.7
    assert chosen.num_passes == always.num_passes
    assert (always.num_empty_copies, chosen.num_empty_copies) == (39, 0)


def test_loss_bounds_the_threshold() -> None:
    rare = RecordedAnswer(scores=[0.2] * 3, gains=[1, 0, 0])
    common = RecordedAnswer(scores=[0.8] * 201, gains=[1, 0] * 100 + [0])
    _, strict = choose_threshold([rare, common], max_loss=0.0)
    _, lenient = choose_threshold([rare, common], max_loss=0.02)
    assert (strict.threshold, lenient.threshold) == (0.2, 0.8)


def test_recorded_answer_aligns_scores_with_pending_tokens() -> None:
    # Tokens 1 2 3 | 1 2 3 1: behind the answer's "1 2" a copy gains "3", and behind "2 3" the "1".
    entry = Transcript(prompt_ids=(1, 2, 3), output_ids=(1, 2, 3, 1))
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    captured = CapturedStates(
        points=((0, Site.MLP),),
        states=torch.logit(scores)[None, :, None],
        transcripts=torch.full((5,), 7),
        labels=(torch.zeros(5), torch.zeros(5)),
        gains=torch.zeros(5),
    )
    probe = Probe(weight=torch.ones(1), threshold=0.5, layer=0, site=Site.MLP, model_id="m")
    (answer,) = record_answers(probe, captured, {7: entry}, match_length=2)
    assert answer.scores == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert list(answer.gains) == [-1, 2, 1, 0]


def test_part_of_an_answer_is_no_record() -> None:
    entry = Transcript(prompt_ids=(1,), output_ids=(1, 2, 3))
    captured = CapturedStates(
        points=((0, Site.MLP),),
        states=torch.zeros(1, 2, 1),
        transcripts=torch.zeros(2, dtype=torch.int64),
        labels=(torch.zeros(2), torch.zeros(2)),
        gains=torch.zeros(2),
    )
    probe = Probe(weight=torch.ones(1), threshold=0.5, layer=0, site=Site.MLP, model_id="m")
    with pytest.raises(AssertionError, match="transcript 0 was not captured whole"):
        record_answers(probe, captured, {0: entry}, match_length=2)
