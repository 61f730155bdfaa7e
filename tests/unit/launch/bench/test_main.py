"""The command on the shipped model: one process, and two ranks under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.bench.__main__ import main

pytestmark = pytest.mark.slow

FLAGS = ["table1", "--methods", "vanilla,copy_spec", "--limit", "1", "--max-tokens", "6"]


def cells(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "cells.jsonl").read_text().splitlines()]


def test_results_are_complete_and_a_second_run_measures_nothing(tmp_path: Path) -> None:
    flags = [*FLAGS, "--num-threads", "1", "--out", str(tmp_path)]
    main(flags)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {
        "answers.jsonl",
        "cells.jsonl",
        "steps.jsonl",
        "table.md",
        "provenance.json",
        "tokens_per_second.png",
        "tokens_per_pass.png",
        "block_efficiency.png",
        "report.html",
    }
    first = cells(tmp_path)
    assert [cell["method"] for cell in first] == ["vanilla", "copy_spec"]
    assert all(cell["equal_to_vanilla"] == 1 for cell in first), "strict mode"
    main(flags)
    assert cells(tmp_path) == first


@pytest.mark.ranks
def test_two_ranks_under_torchrun_share_the_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command += ["-m", "launch.bench", *FLAGS, "--num-threads", "1", "--out", str(tmp_path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert [(cell["tp"], cell["equal_to_vanilla"]) for cell in cells(tmp_path)] == [(2, 1), (2, 1)]
    assert "torchrun --nproc-per-node 2 -m launch.bench" in cells(tmp_path)[0]["command"]
