"""The loop learns, logs, and after a SIGKILL goes on with the numbers of an undisturbed run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from drafters.training.loop import TrainingData, train
from drafters.training.step_log import TRAINING_LOG, VALIDATION_LOG, keep_steps, read_log
from parallel.data_parallel import DataParallel
from tests.support.toy_training import (
    numbers,
    toy_config,
    toy_data,
    toy_run,
    toy_task,
    toy_transcripts,
)

ROOT = Path(__file__).parents[4]
ONE = DataParallel.single()


def killed_run(folder: Path, *settings: str) -> None:
    """A run in a process of its own that ends by SIGKILL."""
    command = [sys.executable, "-m", "tests.support.toy_training", str(folder), *settings]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_loop_learns_what_the_verifier_says(tmp_path: Path, dtype: str) -> None:
    result = toy_run(tmp_path, toy_config(steps=150, dtype=dtype, evaluate_every=150))
    first, last = numbers(tmp_path)[0], numbers(tmp_path)[-1]
    assert first["acceptance"] < 0.2
    assert last["loss"] < 0.1 < 2.5 < first["loss"]
    assert result.validation["acceptance"] == 1.0
    assert (result.steps, result.backend) == (150, "torch")


def test_every_step_is_logged_with_its_numbers(tmp_path: Path) -> None:
    config = toy_config(gradient_accumulation=2)
    toy_run(tmp_path, config)
    lines = read_log(tmp_path / TRAINING_LOG)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert max(line["learning_rate"] for line in lines) == config.learning_rate
    assert all(line["tokens"] > 64 for line in lines), "two micro-batches of up to 64 tokens"
    assert lines[0]["epoch"] == 0 < lines[-1]["epoch"]
    for line in lines:
        assert line["tokens_per_second"] == pytest.approx(line["tokens"] / line["seconds"])
        assert line["gradient_norm"] > 0
    assert [line["step"] for line in read_log(tmp_path / VALIDATION_LOG)] == [4, 8, 12]


def test_validation_weighs_generated_tokens_alike(tmp_path: Path) -> None:
    """However it is cut into batches, the validation loss is the mean over tokens."""
    task = toy_task()
    data = TrainingData(training=toy_transcripts(60), validation=toy_transcripts(9, first=100))
    task.noise = 0.0
    found = []
    for limit in (20, 200):
        (tmp_path / str(limit)).mkdir()
        config = toy_config(steps=1, learning_rate=1e-30, tokens_per_batch=limit)
        found.append(train(task, data, config, tmp_path / str(limit), ONE).validation)
    assert found[0]["acceptance"] == pytest.approx(found[1]["acceptance"])
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-5)


def test_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    """Catches evaluation in training mode, and draws that shift the ones of training."""
    toy_run(tmp_path / "often", toy_config(evaluate_every=1))
    toy_run(tmp_path / "never", toy_config(evaluate_every=1_000))
    assert numbers(tmp_path / "often") == numbers(tmp_path / "never")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody kills."""
    folder = tmp_path_factory.mktemp("undisturbed")
    toy_run(folder, toy_config(gradient_accumulation=2))
    return folder


@pytest.mark.parametrize(
    ("death", "steps_logged"),
    [
        ("die_in_step=18", 8),  # second micro-batch of the ninth step: three steps to repeat
        ("die_in_save=2", 10),  # the second checkpoint, after ten steps, half written
        ("die_in_step=3", 1),  # before the first checkpoint
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(
    tmp_path: Path, undisturbed: Path, death: str, steps_logged: int
) -> None:
    """Weights, moments, data position, learning rate, dropout and drawn weights all come back."""
    killed_run(tmp_path, death, "gradient_accumulation=2")
    assert len((tmp_path / TRAINING_LOG).read_text().splitlines()) == steps_logged
    torch.manual_seed(99)  # the new process is in another random state
    toy_run(tmp_path, toy_config(gradient_accumulation=2))
    assert numbers(tmp_path) == numbers(undisturbed)
    assert read_log(tmp_path / VALIDATION_LOG) == read_log(undisturbed / VALIDATION_LOG)
    assert names(tmp_path / "checkpoints") == names(undisturbed / "checkpoints")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_run_is_not_trained_again(tmp_path: Path, undisturbed: Path) -> None:
    before = (undisturbed / TRAINING_LOG).read_text()
    again = toy_run(undisturbed, toy_config(gradient_accumulation=2))
    assert (undisturbed / TRAINING_LOG).read_text() == before
    first = toy_run(tmp_path, toy_config(gradient_accumulation=2))
    assert again.validation == first.validation
    assert all(again.weights[name].equal(first.weights[name]) for name in first.weights)


def test_a_half_written_log_line_is_dropped(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    keep_steps(log, 2)
    assert log.read_text() == '{"step": 1}\n{"step": 2}\n'
    keep_steps(log, 0)
    assert log.read_text() == ""


def test_a_loss_that_is_no_number_stops_before_it_is_learnt(tmp_path: Path) -> None:
    task = toy_task()
    with torch.no_grad():
        task.module.head.bias[3] = torch.nan
    with pytest.raises(FloatingPointError, match="loss of step 1 is nan: lower learning_rate"):
        train(task, toy_data(), toy_config(), tmp_path, ONE)
    assert names(tmp_path / "checkpoints") == []
    assert not task.module.embedding.weight.isnan().any()
