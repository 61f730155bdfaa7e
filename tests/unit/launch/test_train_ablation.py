"""``python -m launch.train ablation``: three sources, judged on the same answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.train import main
from launch.train_ablation import SOURCES


def test_every_source_is_judged_on_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "ablation --texts 5 --checked 2 --max-tokens 32 --num-threads 1"
    main([*command.split(), "--out", str(tmp_path)])
    written = json.loads((tmp_path / "ablation.json").read_text())
    assert tuple(written["quality"]) == SOURCES
    rows = {
        tuple(judged[title]["num_rows"] for title in judged)
        for judged in written["quality"].values()
    }
    assert len(rows) == 1, "all are judged on the same answers"
    assert (tmp_path / "ablation.png").stat().st_size > 1_000
    shown = capsys.readouterr().out
    assert all(source in shown for source in SOURCES)


def test_wrong_numbers_are_refused_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["ablation", "--texts", "0", "--out", str(tmp_path)])
    assert "--texts and --checked must be 1 or more." in capsys.readouterr().err
