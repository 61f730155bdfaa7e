"""The file of answers: what was kept is found again, by the same model and limit only."""

from __future__ import annotations

from pathlib import Path

from drafters.training.answers import AnswerFile


def test_answers_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, model_id="a", max_tokens=9).add((1, 2), [3, 4])
    assert AnswerFile(path, model_id="a", max_tokens=9).get((1, 2)) == (3, 4)


def test_other_prompt_model_or_limit_finds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, model_id="a", max_tokens=9).add((1, 2), [3, 4])
    assert AnswerFile(path, model_id="a", max_tokens=9).get((12,)) is None
    assert AnswerFile(path, model_id="b", max_tokens=9).get((1, 2)) is None
    assert AnswerFile(path, model_id="a", max_tokens=8).get((1, 2)) is None


def test_half_written_line_is_dropped_and_the_file_stays_usable(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, model_id="a", max_tokens=9).add((1,), [5])
    with path.open("a") as file:
        file.write('{"key": "abc", "outp')
    before = path.read_bytes()
    assert AnswerFile(path, model_id="a", max_tokens=9).get((1,)) == (5,)
    assert path.read_bytes() == before, "ranks read while another one writes"
    AnswerFile(path, model_id="a", max_tokens=9).add((2,), [6])
    restarted = AnswerFile(path, model_id="a", max_tokens=9)
    assert (restarted.get((1,)), restarted.get((2,))) == ((5,), (6,))
