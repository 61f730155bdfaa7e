"""The gate of SwitchSD+: trees, features, ratings and the file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drafters.copy_index import CopyIndex
from engine.copy_source import CopyMatch
from engine.copy_trie import branches
from engine.gate import load_gate, logit, save_gate, sigmoid
from engine.gate_features import (
    FIRST_FEATURES,
    FURTHER_FEATURES,
    Above,
    CopyCalibration,
    RecentCopies,
    Situation,
    common_features,
    first_features,
    node_features,
)
from engine.rated_copies import CopyRater, RatedCopies
from tests.support.gates import copy_model, gate, stump

# The last three tokens occurred at 0-2 (then 4 follows), the last two also at 5-6 (then 9).
CONTEXT = (1, 2, 3, 4, 5, 2, 3, 9, 8, 1, 2, 3)


def matches() -> tuple[CopyMatch, ...]:
    index = CopyIndex((), 20, min_match=2)
    index.append(CONTEXT)
    return index.matches(max_matches=8)


def situation(probe_logit: float | None = None) -> Situation:
    return Situation(
        token_ids=CONTEXT, prompt_length=9, recent=RecentCopies(), probe_logit=probe_logit
    )


def rated(further: float = 2.0, max_tokens: int = 4) -> RatedCopies:
    rater = CopyRater(copy_model(further=further), max_tokens=max_tokens, max_nodes=64)
    return rater.rate(situation(), matches())


def test_boosted_trees_add_a_leaf_of_each_to_the_prior() -> None:
    trees = stump(1, 0.5, low=-1.0, high=3.0)
    rows = np.array([[9.0, 0.5], [9.0, 0.6]])
    assert trees.logits(rows).tolist() == [-1.0, 3.0]
    assert trees.num_features == 2


def test_matches_come_with_their_length_longest_first() -> None:
    assert matches() == (CopyMatch(3, 3), CopyMatch(2, 7))


def test_branches_group_the_occurrences_by_what_follows() -> None:
    found = branches(CONTEXT, (CopyMatch(3, 3), CopyMatch(2, 7), CopyMatch(2, 3)), 0)
    assert [(branch.token_id, len(branch.matches)) for branch in found] == [(4, 2), (9, 1)]
    assert branches(CONTEXT, (CopyMatch(2, 11),), 1) == (), "it reaches the context's end"


def test_features_say_length_lead_share_and_age() -> None:
    longest, other = first_features(situation(), branches(CONTEXT, matches(), 0))
    by_name = dict(zip(FIRST_FEATURES, longest, strict=True))
    assert by_name["match_length"] == math.log(3)
    assert by_name["match_lead"] == math.log(4 / 3)
    assert by_name["share"] == 0.5
    assert by_name["distance"] == math.log1p(9)
    assert (by_name["is_newest"], by_name["from_prompt"]) == (0.0, 1.0)
    assert by_name["answer_length"] == math.log1p(3)
    assert dict(zip(FIRST_FEATURES, other, strict=True))["is_newest"] == 1.0


def test_the_probe_is_the_last_feature_where_there_is_one() -> None:
    found = branches(CONTEXT, matches(), 0)
    assert first_features(situation(0.7), found)[0][-1] == 0.7
    assert len(first_features(situation(), found)[0]) == len(FIRST_FEATURES)
    common = common_features(RecentCopies(), Above(0.5, -1.0))
    node = (*node_features(found[0], found, 2), *common)
    by_name = dict(zip(FURTHER_FEATURES, node, strict=True))
    assert by_name["match_length"] == math.log(5)
    assert (by_name["first_above"], by_name["first_below"], by_name["pays"]) == (0.5, 0.0, -1.0)


def test_recent_copies_are_moving_averages() -> None:
    recent = RecentCopies()
    recent.observe(6)
    assert (recent.hits, recent.tokens) == (0.6, 2.0)
    recent.observe(0)
    assert recent.hits == pytest.approx(0.48)


def test_paths_multiply_and_the_likeliest_node_comes_first() -> None:
    found, believed, further = rated(), sigmoid(2.0), sigmoid(2.0)
    assert found.candidates == ((4, 5, 2, 3), (9, 8, 1, 2))
    assert found.ratings[0] == pytest.approx([believed * further**k for k in range(4)])
    assert list(found.probabilities) == sorted(found.probabilities, reverse=True)
    assert found.expected_tokens == pytest.approx(sum(map(sum, found.ratings)))
    assert found.first_token == pytest.approx(1.0)
    assert found.match_length == 3


def test_unlikely_nodes_are_not_opened() -> None:
    assert [len(path) for path in rated(further=-2.0).candidates] == [3, 2]
    rater = CopyRater(copy_model(further=-2.0), max_tokens=4, max_nodes=64, min_probability=0.05)
    assert [len(path) for path in rater.rate(situation(), matches()).candidates] == [2, 1]
    rater = CopyRater(copy_model(), max_tokens=4, max_nodes=3)
    assert len(rater.rate(situation(), matches()).probabilities) == 3
    assert rater.rate(situation(), ()) == RatedCopies()


def test_calibration_moves_towards_what_came_true() -> None:
    """Copies that hold longer than promised raise the promise for deeper tokens, and only that."""
    calibration, before = CopyCalibration(), rated()
    for _ in range(20):
        calibration.observe_further(0.5, is_right=True)
    rater = CopyRater(copy_model(), max_tokens=4, max_nodes=64, calibration=calibration)
    after = rater.rate(situation(), matches())
    assert after.first_token == before.first_token
    assert after.expected_tokens > before.expected_tokens
    calibration.observe_first(0.9, is_right=False)
    assert calibration.first < 0


def test_informed_model_follows_the_probe() -> None:
    model = gate().model(has_probe=True)
    rater = CopyRater(model, max_tokens=4, max_nodes=64)
    trusted, doubted = (rater.rate(situation(z), matches()).first_token for z in (1.0, -1.0))
    assert trusted > 0.9 > 0.1 > doubted


def test_file_keeps_everything(tmp_path: Path) -> None:
    save_gate(gate(), tmp_path / "gate.safetensors")
    loaded = load_gate(tmp_path / "gate.safetensors")
    assert torch.equal(loaded.probe.weight, gate().probe.weight)
    assert (loaded.probe.layer, loaded.probe.site) == (1, gate().probe.site)
    rows = np.random.default_rng(0).normal(size=(9, len(FIRST_FEATURES) + 1))
    for name in ("informed", "blind"):
        ours, theirs = getattr(gate(), name), getattr(loaded, name)
        assert ours.first_level(rows) == theirs.first_level(rows)
        assert ours.further_bias == theirs.further_bias


def test_a_file_that_is_no_gate_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no gate file"):
        load_gate(tmp_path / "none.safetensors")
    path = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="is not a gate: its metadata lack format"):
        load_gate(path)
    save_file({"probe": torch.zeros(1)}, path, metadata={"format": "switchsteer-gate-1"})
    with pytest.raises(ValueError, match="trained for other features"):
        load_gate(path)
    path.write_text("text")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load_gate(path)


def test_logit_is_finite_everywhere() -> None:
    assert sigmoid(logit(0.3)) == pytest.approx(0.3)
    assert math.isfinite(logit(0.0))
    assert sigmoid(-800.0) == 0.0
