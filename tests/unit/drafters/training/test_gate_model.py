"""Training the gate of SwitchSD+: steps of recorded answers, fits, and how promises are judged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import GradientBoostingClassifier

from drafters.training.benefit import GateData, copy_steps, gate_data
from drafters.training.capture import Transcript
from drafters.training.gate_model import GateFit, _with_common, fit_copies, fit_probe
from drafters.training.gate_quality import RatedSteps, rate_steps
from engine.copy_source import MatchRule
from engine.gate_features import FIRST_FEATURES, FURTHER_FEATURES
from tests.support.gates import gate

PAIRS = MatchRule(match_length=2)
ENTRY = Transcript(prompt_ids=(1, 2, 3, 4, 5), output_ids=(9, 1, 2, 3, 4, 8))
FIT = GateFit(num_trees=5, tree_depth=2, min_leaf=5)


def test_a_step_knows_what_its_copies_would_have_gained() -> None:
    """Behind output (9, 1, 2) the pair 1, 2 goes on with 3, 4 as in the prompt; then 8 differs."""
    steps = [(s.row, s.gained, s.future) for s in copy_steps([ENTRY], seed=0, rule=PAIRS)]
    assert steps == [(2, 2, (3, 4, 8)), (3, 1, (4, 8)), (4, 0, (8,))]
    (first, *rest) = copy_steps([ENTRY], seed=0, rule=MatchRule())
    assert (first.row, first.gained) == (1, 3), "by default one token that agrees is a match"
    assert [step.row for step in rest] == [2, 3, 4]


def test_branches_and_the_nodes_along_the_right_path_are_collected() -> None:
    data = gate_data([ENTRY], seed=0, rule=PAIRS)
    assert data.accepted.tolist() == [2, 1, 0]
    assert data.first_right.tolist() == [True, True, False]
    assert data.further_right.tolist() == [True, False, False], "4 then not 5; and 5 is wrong"
    assert data.further_branch.tolist() == [0, 0, 1]
    assert data.first.shape == (3, len(FIRST_FEATURES))
    assert data.further.shape == (3, len(FURTHER_FEATURES))


def random_data(steps: int = 600) -> GateData:
    """One branch a step; it is right when its first feature is positive, and the probe knows."""
    random = np.random.default_rng(0)
    first = random.normal(size=(steps, len(FIRST_FEATURES)))
    right = first[:, 0] > 0
    return GateData(
        transcripts=np.arange(steps) // 6,
        rows=np.arange(steps) % 6,
        accepted=np.where(right, 5, 0),
        is_visited=np.ones(steps, dtype=np.bool_),
        first=first,
        first_right=right,
        first_step=np.arange(steps),
        recent_tokens=np.ones(steps),
        further=random.normal(size=(steps, len(FURTHER_FEATURES))),
        further_right=random.random(steps) < 0.8,
        further_branch=np.arange(steps),
    )


def test_exported_trees_say_what_scikit_learn_says() -> None:
    data = random_data()
    everything = np.ones(len(data.accepted), dtype=np.bool_)
    model = fit_copies(data, everything, None, FIT)
    reference = GradientBoostingClassifier(
        n_estimators=5,
        max_depth=2,
        learning_rate=FIT.learning_rate,
        min_samples_leaf=5,
        subsample=0.5,
        random_state=0,
    ).fit(data.first, data.first_right)
    assert model.first.logits(data.first) == pytest.approx(
        reference.decision_function(data.first), abs=1e-6
    )


def test_deeper_nodes_are_right_as_often_as_they_were() -> None:
    """Their features say nothing here, so that every node's chance is near the share."""
    data = random_data()
    model = fit_copies(data, np.ones(len(data.accepted), dtype=np.bool_), None, FIT)
    rows = _with_common(data, model.first.logits(data.first), model.pays.logits(data.first))
    chances = [
        model.node_probability(tuple(row[:4]), model.common_logit(tuple(row[4:])))
        for row in rows.tolist()
    ]
    assert np.mean(chances) == pytest.approx(data.further_right.mean(), abs=0.01)


def test_the_probe_learns_benefit_and_its_training_logits_are_crossed() -> None:
    data = random_data()
    states = torch.from_numpy(data.first[:, :2]).float()
    validation = data.transcripts % 5 == 0
    found = fit_probe(states, data, validation, GateFit())
    assert found.auc > 0.99
    own = states @ found.weight
    assert np.allclose(found.logits[validation], own[torch.from_numpy(validation)].numpy())
    assert not np.allclose(found.logits[~validation], own[torch.from_numpy(~validation)].numpy())


def test_ratings_follow_the_probe_where_there_is_one() -> None:
    sure = rate_steps(gate(), [ENTRY], [[2.0] * 7])
    unsure = rate_steps(gate(), [ENTRY], [[-2.0] * 7])
    blind = rate_steps(gate(), [ENTRY], None)
    assert sure.first[0] > 0.9 > 0.1 > unsure.first[0]
    assert blind.gained.tolist() == [3, 2, 1, 0]
    assert sure.expected[0] > sure.first[0]


def test_reliability_compares_promise_and_truth_per_bin() -> None:
    rated = RatedSteps(
        first=np.array([0.05, 0.05, 0.95, 0.95]),
        pays=np.array([0.1, 0.2, 0.8, 0.9]),
        expected=np.array([0.1, 0.2, 4.0, 5.0]),
        gained=np.array([0, 1, 5, 6]),
        is_visited=np.array([True, False, True, False]),
    )
    assert rated.reliability() == [(0.05, 0.5, 2), (0.95, 1.0, 2)]
    assert rated.calibration_error() == pytest.approx((0.45 + 0.05) / 2)
    assert rated.benefit_auc() == 1.0
    assert rated.visited().gained.tolist() == [0, 5]
    assert len((rated + rated).first) == 8


@pytest.mark.parametrize("changes", [{"num_trees": 0}, {"penalty": -1.0}, {"learning_rate": 0.0}])
def test_impossible_fits_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        GateFit(**changes)  # type: ignore[arg-type]
