"""A recording says what the engine does: its replay takes the engine's own steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drafters.assemble import assemble_engine
from drafters.pretrained import shipped_gate, shipped_probe
from engine.drafting import Drafters, LoadedDrafter
from engine.gate import load_gate
from engine.probe import load_probe
from engine.speculation import speculation
from launch.recipes import SMOLLM2, smollm2
from launch.replay.__main__ import main
from launch.replay.record import accepted_lengths
from launch.replay.stream import Clock, RecordedDrafter, Replay
from launch.traces import load_traces
from parallel.mesh import Mesh

TOKENS = 24
METHODS = [
    speculation("eagle3", num_speculative_tokens=5, row_budget="full"),
    speculation(
        "switch_sd",
        drafter="eagle3",
        num_speculative_tokens=5,
        copy_match_length=3,
        row_budget="full",
    ),
    speculation("switch_sd_plus", row_budget="full"),
]


def test_a_replayed_recording_takes_the_steps_that_the_engine_took(tmp_path: Path) -> None:
    """Sources, drafted lengths, probe scores and accepted tokens of every step are equal."""
    file = tmp_path / "traces.jsonl"
    command = f"record --workload code_editing:1 --max-tokens {TOKENS} --num-threads 1 --out {file}"
    main([*command.split(), "--num-speculative-tokens", "5"])
    (trace,) = load_traces(file)
    engine = assemble_engine(smollm2(), Mesh.single(), also=METHODS)
    probe, gate = shipped_probe(SMOLLM2), shipped_gate(SMOLLM2)
    assert probe is not None
    assert gate is not None
    for method in METHODS:
        engine.use_policy(method)
        engine.scheduler.use_step_times(None)
        answered = engine.generate(trace.prompt_ids, max_tokens=TOKENS)
        assert answered.token_ids == trace.output_ids
        drafter = RecordedDrafter(clock=Clock(), seconds_per_token=0.001)
        drafting = Drafters(
            probe=load_probe(probe),
            gate=load_gate(gate),
            neural={method.drafter_key: LoadedDrafter(drafter=drafter)},
        ).drafting(method)
        replayed = Replay(drafting, drafter, None).run([trace])
        own = [step for step in answered.records if step.source != "prefill"]
        assert [(step.source, step.output) for step in replayed.records] == [
            (step.source, step.output) for step in own
        ]
        assert [step.probe_score for step in replayed.records] == pytest.approx(
            [step.probe_score for step in own], abs=1e-3
        )


def test_a_candidate_counts_as_far_as_the_answer_went() -> None:
    """Behind the first token 8, 9 came and 7 was drafted, or 8; behind the second nothing."""
    assert accepted_lengths((5, 8, 9), [((7, 9), (8, 1)), ()]) == [1, 2, 1]


def test_nothing_is_overwritten_and_no_prompt_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "there.jsonl"
    file.write_text(json.dumps({"prompt": "word " * 50}) + "\n")
    with pytest.raises(SystemExit):
        main(["record", "--out", str(file)])
    assert "is there already" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["record", "--workload", str(file), "--out", str(tmp_path / "no" / "x.jsonl")])
    assert "there is no folder" in capsys.readouterr().err
    out = tmp_path / "out.jsonl"
    with pytest.raises(SystemExit):
        main(["record", "--workload", str(file), "--max-tokens", "4090", "--out", str(out)])
    assert "more than the 4096" in capsys.readouterr().err
    assert not out.exists()
