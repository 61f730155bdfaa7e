"""Recorded answers through the engine's policies: counted by hand, or refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.drafting import Drafters, LoadedDrafter
from engine.speculation import SpeculationConfig, speculation
from engine.step_time import StepTimeTable
from launch.replay.__main__ import main
from launch.replay.oracle import oracle_tokens_per_pass
from launch.replay.stream import Clock, RecordedDrafter, Replay, Replayed
from launch.traces import Trace, load_traces
from tests.support.gates import gate

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)
OUTPUT = (1, 2, 3, 4, 5, 9, 9, 9)
"""The first token is the prompt pass's; 1, 2 continues as in the prompt up to 5."""
TRACE = Trace(
    name="t/1", prompt_ids=PROMPT, output_ids=OUTPUT, neural_lengths=(1, 2, 1, 1, 1, 3, 1, 1)
)


def replayed(config: SpeculationConfig, traces: Sequence[Trace] = (TRACE,)) -> Replayed:
    drafter = RecordedDrafter(clock=Clock(), seconds_per_token=0.001)
    drafters = Drafters(gate=gate(), neural={config.drafter_key: LoadedDrafter(drafter=drafter)})
    return Replay(drafters.drafting(config), drafter, None).run(traces)


def outputs(found: Replayed) -> list[tuple[str, int]]:
    return [(step.source, step.output) for step in found.records]


def test_the_neural_drafter_is_right_as_far_as_it_was() -> None:
    """Position 1 brings two tokens, 3 and 4 one each, 5 three, and there the answer ends."""
    found = replayed(speculation("eagle3", num_speculative_tokens=3))
    assert outputs(found) == [("neural", 2), ("neural", 1), ("neural", 1), ("neural", 3)]
    assert found.tokens_per_pass == 7 / 4
    short = replayed(speculation("eagle3", num_speculative_tokens=1))
    assert outputs(short)[3] == ("neural", 2), "a shorter draft brings less"


def test_copies_are_verified_against_the_recorded_tokens() -> None:
    """Behind (1, 2) the copy 3, 4, 5, 6, ... holds for three tokens; 9 is the verifier's own."""
    config = speculation("copy_spec", copy_match_length=2, row_budget="full")
    assert outputs(replayed(config)) == [("plain", 1), ("copy", 4), ("plain", 1), ("plain", 1)]


def test_our_gate_works_without_a_probe() -> None:
    config = speculation("switch_sd_plus", drafter="eagle3", row_budget="full")
    found = replayed(config)
    assert sum(step.output for step in found.records) == len(OUTPUT) - 1
    assert {"merged", "copy"} & {step.source for step in found.records}


def test_recorded_scores_are_seen_at_their_step() -> None:
    """The score of the row that emitted the pending token."""
    scored = Trace(
        name="t",
        prompt_ids=PROMPT,
        output_ids=OUTPUT,
        neural_lengths=TRACE.neural_lengths,
        probe_scores=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
    )
    found = replayed(speculation("eagle3", num_speculative_tokens=3), [scored])
    assert [step.probe_score for step in found.records] == [0.0, 0.2, 0.3, 0.4]


def test_oracle_takes_the_longer_one_by_hindsight() -> None:
    """Neural 2, then the copy behind (1, 2, 3) brings two and the verifier one, then two plain."""
    assert oracle_tokens_per_pass([TRACE], match_length=2) == pytest.approx(7 / 4)


def written(tmp_path: Path, **changes: object) -> str:
    fields = {
        "prompt_token_ids": PROMPT,
        "generated_token_ids": OUTPUT,
        "acc_eagle": {"acc_len": TRACE.neural_lengths[:6]},
        **changes,
    }
    file = tmp_path / "kind.jsonl"
    file.write_text(json.dumps(fields) + "\n")
    return str(file)


def test_an_answer_ends_where_the_drafters_record_does(tmp_path: Path) -> None:
    (trace,) = load_traces(Path(written(tmp_path)))
    assert trace.output_ids == OUTPUT[:6]


def test_command_shows_every_method_and_the_oracle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    main(["--traces", written(tmp_path), "--json", str(out)])
    shown = capsys.readouterr().out
    assert "switch_sd_plus" in shown
    assert "oracle_5 (by hindsight)" in shown
    rows = {row["method"]: row for row in json.loads(out.read_text())["kind"]}
    assert rows["eagle3"]["tokens_per_pass"] >= 1.0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--traces must name at least one file"),
        (["--traces", "none.jsonl"], "there is no trace file none.jsonl"),
        (["--traces", "KIND", "--methods", "lookahead"], "asks the verifier about guesses"),
        (["--traces", "KIND", "--methods", "medusa"], "needs drafter 'medusa', and traces know"),
        (["--traces", "KIND", "--methods", "switch_sd"], "kind has no probe_scores"),
    ],
)
def test_mistakes_are_one_sentence(
    flags: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main([file if word == "KIND" else word for word in flags])
    assert exit_.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_line_that_is_no_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kind\.jsonl line 1 is not a trace"):
        load_traces(Path(written(tmp_path, acc_eagle=[1])))


def test_rows_that_were_not_verified_say_nothing_of_the_drafter() -> None:
    """The rows' budget lets one of three drafted tokens through: the others were not wrong."""
    trace = Trace(
        name="t", prompt_ids=(500,), output_ids=tuple(range(400)), neural_lengths=(9,) * 400
    )
    drafter = RecordedDrafter(clock=Clock(), seconds_per_token=0.0, trace=trace)
    config = speculation("eagle3", num_speculative_tokens=3)
    drafting = Drafters(neural={config.drafter_key: LoadedDrafter(drafter=drafter)}).drafting(
        config
    )
    two_rows_are_free = StepTimeTable((1, 2, 3, 4), (1.0, 1.0, 9.0, 99.0))
    replay = Replay(drafting, drafter, two_rows_are_free)
    replay.run([trace])
    (economy,) = replay._planner._economies.values()
    _, (two, _, _), (three, _, _) = economy.lookahead.expected(3)
    assert three - two > 0.2
