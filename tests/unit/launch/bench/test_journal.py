"""The journal: broken-off runs continue, finished cells stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from launch.bench.cells import Row
from launch.bench.journal import Journal, Session
from launch.bench.runs import run_from_json, run_to_json
from launch.bench.workloads import Prompt
from tests.unit.launch.bench.runs import COPY, SETTINGS, VANILLA, copy_run, plain_run

PROMPTS = (Prompt(name="a", token_ids=(1, 2, 3)), Prompt(name="b", token_ids=(4,)))
TOKENS = (7, 1, 2, 3)


def session(*rows: Row) -> Session:
    return Session(settings=SETTINGS, rows=rows, command="c", versions={"torch": "2"})


def measured(directory: Path, session: Session, prompts: tuple[Prompt, ...] = PROMPTS) -> Journal:
    journal = Journal(directory)
    journal.open(session)
    for prompt in prompts:
        for row in session.rows:
            run = plain_run if row.method == "vanilla" else copy_run
            journal.add(session, row.label, prompt, run(TOKENS, seconds=2.0))
    return journal


def test_run_survives_the_journal() -> None:
    run = plain_run(TOKENS, seconds=2.0, ties=(3,))
    assert run_from_json(run_to_json(run)) == run
    assert run.near_ties == {3: 0.01}


def test_a_broken_off_session_continues_at_the_first_unmeasured_prompt(tmp_path: Path) -> None:
    measured(tmp_path, session(VANILLA, COPY), PROMPTS[:1])
    again = Journal(tmp_path)
    assert again.missing(session(VANILLA, COPY), PROMPTS) == [PROMPTS[1]]
    assert again.cells() == []


def test_a_prompt_with_one_row_missing_is_measured_again_with_all_rows(tmp_path: Path) -> None:
    """Otherwise its speed-up would compare times from two runs."""
    journal = measured(tmp_path, session(VANILLA, COPY), PROMPTS[:1])
    journal.add(session(VANILLA, COPY), "vanilla", PROMPTS[1], plain_run(TOKENS, seconds=1.0))
    assert journal.missing(session(VANILLA, COPY), PROMPTS) == [PROMPTS[1]]


def test_a_line_cut_off_by_a_crash_is_dropped(tmp_path: Path) -> None:
    measured(tmp_path, session(VANILLA))
    file = tmp_path / "answers.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"answer": "x", "la')
    assert len(Journal(tmp_path).cells()) == 1
    assert file.read_text() == whole


def test_finished_cells_are_known_by_settings_and_speculation(tmp_path: Path) -> None:
    journal = measured(tmp_path, session(VANILLA, COPY))
    assert journal.is_finished(SETTINGS, COPY)
    assert not journal.is_finished(replace(SETTINGS, dtype="float32"), COPY)
    assert not journal.is_finished(SETTINGS, replace(COPY, speculation={"other": 1}))


def test_a_row_of_two_sessions_counts_once_beside_most_rows(tmp_path: Path) -> None:
    measured(tmp_path, session(VANILLA))
    journal = measured(tmp_path, session(VANILLA, COPY))
    assert [cell["label"] for cell in journal.cells()] == ["vanilla", "copy_spec:x=1"]


def test_steps_carry_prompt_method_and_the_contracts_keys(tmp_path: Path) -> None:
    journal = measured(tmp_path, session(VANILLA, COPY))
    steps = list(journal.steps())
    assert len(steps) == 2 * (4 + 3)
    assert {step["method"] for step in steps} == {"vanilla", "copy_spec"}
    assert {step["request"] for step in steps} == {"a", "b"}
    wanted = "request step source drafted rows accepted output draft_ms verify_ms probe_score"
    assert set(steps[0]) >= {*wanted.split(), "match_length"}
