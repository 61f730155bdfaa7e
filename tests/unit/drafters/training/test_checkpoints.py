"""Checkpoints are whole or absent, few, and refuse a run that is not theirs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drafters.training.backends import TorchBackend
from drafters.training.checkpoints import CheckpointFolder, RunFacts
from parallel.data_parallel import DataParallel
from tests.support.toy_training import toy_config, toy_task

ONE = DataParallel.single()
FACTS = RunFacts(config=toy_config(), data="0123", world_size=1, backend="torch")


def backend() -> TorchBackend:
    return TorchBackend(toy_task(), toy_config(), ONE)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_two_are_kept_and_the_newest_is_restored(tmp_path: Path) -> None:
    checkpoints, saved = CheckpointFolder(tmp_path, FACTS, ONE), backend()
    for step in (3, 20, 100):
        with torch.no_grad():
            saved._masters["head.bias"].fill_(step)
        checkpoints.save(step, saved)
    assert names(tmp_path) == ["step-00000020", "step-00000100"]
    restored = backend()
    assert CheckpointFolder(tmp_path, FACTS, ONE).restore(restored) == 100
    assert set(restored.unwrap()["head.bias"].tolist()) == {100.0}


def test_no_checkpoint_means_step_zero(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "new", FACTS, ONE).restore(backend()) == 0


def test_unfinished_checkpoints_are_thrown_away(tmp_path: Path) -> None:
    """A folder that a killed run left half written must never be loaded."""
    CheckpointFolder(tmp_path, FACTS, ONE).save(5, backend())
    unfinished = tmp_path / "step-00000010.partial"
    unfinished.mkdir()
    (unfinished / "training.json").write_text('{"step": 10')
    assert CheckpointFolder(tmp_path, FACTS, ONE).restore(backend()) == 5
    assert names(tmp_path) == ["step-00000005"]


def test_random_state_comes_back(tmp_path: Path) -> None:
    """Dropout draws from the default generator."""
    checkpoints = CheckpointFolder(tmp_path, FACTS, ONE)
    checkpoints.save(1, backend())
    drawn = torch.rand(4)
    checkpoints.restore(backend())
    assert torch.rand(4).equal(drawn)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(FACTS, config=toy_config(learning_rate=0.5)), "learning_rate=0.02, not 0.5"),
        (replace(FACTS, config=toy_config(steps=13)), "steps=12, not 13"),
        (replace(FACTS, data="4567"), "data=0123, not 4567"),
        (replace(FACTS, world_size=2), "ranks=1, not 2"),
        (replace(FACTS, backend="zero1"), "backend=torch, not zero1"),
    ],
)
def test_another_runs_checkpoint_is_refused(tmp_path: Path, facts: RunFacts, words: str) -> None:
    CheckpointFolder(tmp_path, FACTS, ONE).save(1, backend())
    with pytest.raises(ValueError, match=f"step-00000001 was written with {words}"):
        CheckpointFolder(tmp_path, facts, ONE).restore(backend())


def test_how_often_to_save_may_change(tmp_path: Path) -> None:
    CheckpointFolder(tmp_path, FACTS, ONE).save(1, backend())
    changed = replace(FACTS, config=toy_config(save_every=7, evaluate_every=9, num_threads=2))
    assert CheckpointFolder(tmp_path, changed, ONE).restore(backend()) == 1


def test_the_facts_are_readable(tmp_path: Path) -> None:
    CheckpointFolder(tmp_path, FACTS, ONE).save(1, backend())
    facts = json.loads((tmp_path / "step-00000001" / "training.json").read_text())
    assert (facts["step"], facts["betas"], facts["data"]) == (1, [0.9, 0.95], "0123")
