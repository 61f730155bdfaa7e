"""The terminal command: counts from records, and mistakes before anything is loaded."""

from __future__ import annotations

import pytest

from launch.generate import legend, main
from tests.unit.launch.bench.runs import copy_run


def test_legend_counts_tokens_passes_and_who_proposed_them() -> None:
    text = legend(copy_run((7, 1, 2, 3, 4, 5), seconds=1.0).records).plain
    assert "5 tokens in 2 verifier passes, 2.50 a pass, 250.0 a second, 3 of them drafted" in text
    assert "2 copy 0 neural 0 merged 0 plain" in text


def test_legend_of_no_steps_has_no_rates() -> None:
    assert "0 tokens in 0 verifier passes, 0 of them drafted" in legend([]).plain


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "a prompt is needed"),
        (["hi", "--max-tokens", "0"], "--max-tokens must be 1 or more, not 0"),
        (["hi", "--tensor-parallel-size", "2"], "this command runs one rank and 2 are asked for"),
        (["hi", "--recipe", "huge"], "--recipe must be one of smollm2"),
        (["hi", "--speculative-config", '{"method": "magic"}'], "must be one of vanilla"),
        (["hi", "--model", "./no-such-model"], "./no-such-model"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
