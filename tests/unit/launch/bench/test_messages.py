"""The benchmark of a step's messages runs on two ranks and a drafter, and says what it needs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from launch.bench.messages import main


def _torchrun(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    return subprocess.run(
        [*command, "-m", "launch.bench.messages", *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )


@pytest.mark.slow
@pytest.mark.ranks
def test_every_message_is_measured() -> None:
    done = _torchrun("--rounds", "5", "--rows", "3", "--features", "8")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    sizes = {
        name: int(next(line for line in lines if name in line).split("│")[3].replace(",", ""))
        for name in ("probe scores", "partial features", "VERDICT", "DRAFT")
    }
    assert sizes["probe scores"] == 3 * 4
    assert sizes["partial features"] == 3 * 8 * 2
    assert sizes["VERDICT"] % 8 == 0
    # A question has 17 words, 3 tokens and 3 rows of features; its reply 5, counts and 2 tokens.
    assert sizes["DRAFT"] == 8 * (17 + 3) + 3 * 8 * 2 + 8 * (5 + 1 + 1 + 2 + 1)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--rows", "0"], "--rows must be at least 1, not 0"),
        (["--rows", "600"], "--max-rows 512 has no room for 600 rows"),
        ([], "two ranks are needed: torchrun"),
    ],
)
def test_mistakes_are_one_sentence(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(flags)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
