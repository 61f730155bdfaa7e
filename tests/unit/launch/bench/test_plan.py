"""From flags to a plan: checked before anything is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launch.bench.plan import BenchFlags, make_plans

FLAGS = BenchFlags(limit=2, max_tokens=8)


def test_rows_are_our_methods_then_the_peers_modes() -> None:
    (plan,) = make_plans(replace(FLAGS, methods="copy_spec", peer=("vllm",)), world_size=1)
    assert [row.label for row in plan.rows] == ["vanilla", "copy_spec", "vllm:plain", "vllm:ngram"]
    assert [row.base for row in plan.rows] == ["vanilla", "vanilla", "vllm:plain", "vllm:plain"]
    assert plan.settings.prompts == len(plan.prompts) == 2
    assert plan.config.max_num_seqs == 1


def test_every_workload_has_a_plan_with_its_own_limit() -> None:
    flags = replace(FLAGS, workload=("humaneval", "code_editing:3"))
    plans = make_plans(flags, world_size=1)
    assert [(p.settings.workload, p.settings.prompts) for p in plans] == [
        ("humaneval", 2),
        ("code_editing", 3),
    ]


def test_table4_has_a_plan_per_temperature() -> None:
    plans = make_plans(replace(FLAGS, table="table4"), world_size=1)
    assert [plan.settings.temperature for plan in plans] == [0.0, 0.25, 0.5, 0.75, 1.0]
    (one,) = make_plans(replace(FLAGS, table="table4", temperature=(0.7,)), world_size=1)
    assert one.settings.temperature == 0.7


def test_ranks_launched_together_are_tensor_parallel_unless_told() -> None:
    assert make_plans(FLAGS, world_size=2)[0].settings.tp == 2
    flags = replace(FLAGS, pipeline_parallel_size=2, tensor_parallel_size=1)
    assert make_plans(flags, world_size=2)[0].settings.pp == 2
    with pytest.raises(ValueError, match="needs 3 processes and 1 were started: torchrun"):
        make_plans(replace(FLAGS, tensor_parallel_size=3), world_size=1)


def test_threads_are_of_the_whole_system() -> None:
    (plan,) = make_plans(replace(FLAGS, threads=4), world_size=2)
    assert (plan.config.num_threads, plan.settings.threads) == (2, 4)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"table": "table9"},
            "TABLE must be one of table1, table2, table3, table4, table5, sd2, figure3",
        ),
        ({"limit": 0}, "--limit must be 1 or more, not 0"),
        ({"max_tokens": -1}, "--max-tokens must be 1 or more"),
        ({"threads": 0}, "--threads must be 1 or more"),
        ({"peer": ("sglang",)}, "--peer must be one of transformers, vllm, not 'sglang'"),
        ({"peer": ("vllm", "vllm")}, "--peer names vllm twice"),
        ({"methods": "magic"}, "'method' must be one of"),
        ({"recipe": "big"}, "--recipe must be one of"),
        ({"workload": ("nothing.jsonl",)}, "--workload must be one of humaneval, code_editing"),
        ({"workload": ("rag:0",)}, "'rag:0' must read NAME or NAME:LIMIT"),
        ({"workload": ("rag",)}, "'rag' is read from specbench.jsonl: give --data-dir"),
        ({"max_model_len": 100}, "prompt HumanEval/0 has 155 tokens"),
        ({"out": Path(__file__)}, "--out must be a directory"),
    ],
)
def test_mistakes_are_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_plans(replace(FLAGS, **changes), world_size=1)  # type: ignore[arg-type]
