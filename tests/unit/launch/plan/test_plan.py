"""The planner: step times, memory, calibration, and what follows for drafts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launch.plan.__main__ import main
from launch.plan.acceptance import from_traces, geometric, survival
from launch.plan.calibrate import FIT_CONTEXTS, FIT_ROWS, Timing, fit_machine, relative_errors
from launch.plan.machine import Machine, load_machine, save_machine
from launch.plan.memory import rank_memory
from launch.plan.outcome import Load, best, choices
from launch.plan.steptime import Layout, StepTimeModel
from launch.plan.verifier import num_weights, verifier_shape

LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"


def h100s(ranks: int = 8) -> StepTimeModel:
    return StepTimeModel(
        machine=load_machine("h100_sxm"),
        model=verifier_shape(LLAMA_70B),
        layout=Layout(tensor_parallel=ranks),
    )


def plain(machine: Machine, **values: float) -> Machine:
    """A machine with some parameters changed."""
    changed = {name: replace(machine.parameters[name], value=v) for name, v in values.items()}
    return replace(machine, parameters={**machine.parameters, **changed})


def test_reading_the_weights_bounds_a_step_of_one_row() -> None:
    """Without gaps, launches and all-reduces: streamed bytes / reached bandwidth, by hand."""
    free = {"layer_gap": 0.0, "step_gap": 0.0, "attention_launch": 0.0, "overlap": 50.0}
    machine = plain(load_machine("h100_sxm"), **free)
    model = replace(h100s(1), machine=machine)
    layer = 8192 * (8192 * 2 + 1024 * 2) + 3 * 8192 * 28672
    streamed = 2 * (80 * layer + 8192 * 128256)
    assert model.cost(1, context=1.0).total == pytest.approx(streamed / (3.35e12 * 0.8), rel=1e-3)


def test_ranks_share_the_weights_and_pay_all_reduces() -> None:
    one, eight = (h100s(ranks).cost(1, context=2048) for ranks in (1, 8))
    assert one.all_reduce == 0.0
    assert eight.products == pytest.approx(one.products / 8, rel=0.01)
    assert eight.all_reduce == pytest.approx(80 * 2 * (9.0e-6 + 4.4e-12 * 2 * 8192))


def test_few_rows_are_nearly_free_and_many_are_not() -> None:
    table = h100s().table(context=2048)
    assert table.at(21) / table.at(1) < 1.15
    assert table.at(512) / table.at(1) > 2.0


def test_memory_of_a_rank_by_hand() -> None:
    shape, machine = verifier_shape(LLAMA_70B), load_machine("h100_sxm")
    memory = rank_memory(
        machine, shape, tensor_parallel=8, pipeline_parallel=1, bytes_per_weight=2.0
    )
    layer, vocabulary = num_weights(shape)
    assert 80 * layer + vocabulary == pytest.approx(70.55e9, rel=1e-3)
    assert memory.weights == pytest.approx((80 * layer + vocabulary) / 8 * 2)
    assert memory.kv_per_token == 2 * 80 * 1 * 128 * 2
    alone = rank_memory(
        machine, shape, tensor_parallel=1, pipeline_parallel=1, bytes_per_weight=2.0
    )
    assert alone.kv_tokens == 0, "70B in bf16 does not fit one device"


def test_best_lookahead_stops_where_tokens_cost_more_than_they_bring() -> None:
    found = choices(h100s(), Load(), geometric(0.6, 0.5, 7), draft_seconds=0.002)
    assert found[0].tokens_per_pass == 1.0
    assert found[2].tokens_per_pass == pytest.approx(1 + 0.6 + 0.3)
    assert 0 < best(found).length < 7
    assert best(choices(h100s(), Load(), (0.0,), draft_seconds=0.0)).length == 0


def test_acceptance_is_the_share_of_drafts_that_hold_so_far(tmp_path: Path) -> None:
    assert survival([0, 1, 3], 3) == (2 / 3, 1 / 3, 1 / 3)
    trace = {
        "prompt_token_ids": [1],
        "generated_token_ids": [2, 3],
        "acc_eagle": {"acc_len": [1, 3]},
        "acc_ngram": {"acc_len": [1, 1, 21]},
    }
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps(trace) + "\n")
    found = from_traces([file], neural=2, copies=2)
    assert found.neural == (0.5, 0.5)
    assert found.copies == (1.0, 1.0), "places without a copy say nothing of copies"
    file.write_text("{}\n")
    with pytest.raises(ValueError, match=r"trace\.jsonl line 1 is not a trace"):
        from_traces([file])


def test_calibration_finds_the_machine_that_made_the_times(tmp_path: Path) -> None:
    """Times of a known machine, with a few per cent of noise: predictions must be that near."""
    truth = plain(
        load_machine("h100_sxm"),
        memory_bandwidth=2e10,
        memory_efficiency=1.0,
        matmul_rate=2e11,
        matmul_efficiency=1.0,
        attention_efficiency=0.1,
        overlap=3.0,
        layer_gap=3e-5,
        step_gap=1e-3,
        attention_launch=0.0,
    )
    layout, shape = Layout(), verifier_shape("meta-llama/Llama-3.1-8B-Instruct")
    steps = StepTimeModel(machine=truth, model=shape, layout=layout)
    timings = [
        Timing(
            rows=rows,
            context=context,
            seconds=steps.cost(rows, context=context).total * (1.03 if rows % 3 else 0.97),
        )
        for rows in FIT_ROWS
        for context in FIT_CONTEXTS
    ]
    found = fit_machine("here", timings, shape, layout=layout, memory_size=1e9)
    errors = relative_errors(found, timings, shape, layout=layout)
    assert max(errors) < 0.06
    assert found["memory_bandwidth"] == pytest.approx(2e10, rel=0.3)
    save_machine(found, tmp_path / "here.json")
    assert load_machine(str(tmp_path / "here.json")) == found


def test_a_file_that_is_no_machine_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--machine must be one of h100_sxm, or a file"):
        load_machine("abacus")
    file = tmp_path / "machine.json"
    file.write_text('{"name": "x", "parameters": {}, "all_reduce": {}}')
    with pytest.raises(ValueError, match=r"is not a machine file: .*memory_bandwidth"):
        load_machine(str(file))
    with pytest.raises(ValueError, match="no all-reduce times for 3 ranks"):
        load_machine("h100_sxm").all_reduce_seconds(1.0, 3)


def test_plan_says_what_fits_and_what_is_best(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    main(["--recipe", "llama-3.3-70b", "--gpus", "8", "--json", str(out)])
    shown = capsys.readouterr().out
    assert "Memory of each of 8 ranks (modelled; device size reported)" in shown
    assert "best" in shown
    written = json.loads(out.read_text())
    assert written["best"]["Neural lookahead"]["length"] > 1
    assert written["parameters"]["memory_bandwidth"]["origin"] == "reported"
    main(["--recipe", "llama-3.3-70b", "--gpus", "2", "--batch", "64"])
    assert "Does not fit: 64 x 2048 tokens are wanted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--gpus", "3"], "no all-reduce times for 3 ranks"),
        (["--gpus", "0"], "--gpus must be a multiple of the 1 pipeline stages, not 0"),
        (["--context", "0"], "--context and --batch must be 1 or more"),
        (["--machine", "abacus"], "--machine must be one of"),
        (["--traces", "none.jsonl"], "there is no trace file none.jsonl"),
    ],
)
def test_mistakes_are_one_sentence(
    flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--recipe", "llama-3.3-70b", *flags])
    assert exit_.value.code == 2
    assert sentence in capsys.readouterr().err
