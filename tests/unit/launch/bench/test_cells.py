"""A line of cells.jsonl from answers small enough to count by hand."""

from __future__ import annotations

import pytest

from engine.metrics import DECODE_SOURCES
from launch.bench.cells import Answer, Row, compare, make_cell
from launch.bench.runs import Run
from tests.unit.launch.bench.runs import COPY, SETTINGS, VANILLA, copy_run, plain_run

CONTRACT = {
    "method", "workload", "recipe", "dtype", "threads", "tp", "pp", "prompts", "output_tokens",
    "verifier_passes", "block_efficiency", "accepted_length", "share", "false_copy_rate",
    "tokens_per_second", "speedup", "equal_to_vanilla", "near_ties", "mismatches",
    "prefill_seconds", "decode_seconds", "draft_seconds", "verify_seconds", "command", "versions",
}  # fmt: skip
"""Keys that readers outside rely on: they may be added to, not renamed."""

TOKENS = (7, 1, 2, 3, 4, 5)


def answer(run: Run, base: Run, *, prompt_length: int = 3) -> Answer:
    return Answer(prompt="p", prompt_length=prompt_length, run=run, base=base)


def copy_cell() -> dict[str, object]:
    base = plain_run(TOKENS, seconds=5.0)
    answers = [answer(copy_run(TOKENS, seconds=seconds), base) for seconds in (1.0, 4.0)]
    return make_cell(SETTINGS, COPY, answers, command="c", versions={"torch": "2"})


def test_cell_has_every_key_of_the_contract() -> None:
    cell = copy_cell()
    assert set(cell) >= CONTRACT
    for key, parts in {
        "accepted_length": {"copy", "neural", "merged"},
        "share": {"copy", "neural", "merged", "plain"},
        "tokens_per_second": {"macro", "micro"},
        "speedup": {"macro", "micro"},
    }.items():
        nested = cell[key]
        assert isinstance(nested, dict)
        assert set(nested) == parts


def test_counts_are_of_decode_steps() -> None:
    cell = copy_cell()
    assert (cell["output_tokens"], cell["answer_tokens"], cell["verifier_passes"]) == (10, 12, 4)
    assert cell["block_efficiency"] == 2.5
    assert cell["accepted_length"] == {"copy": 1.5, "neural": None, "merged": None}
    assert cell["share"] == {"copy": 1.0, "neural": 0.0, "merged": 0.0, "plain": 0.0}
    assert cell["false_copy_rate"] == 0.5


def test_speeds_are_relative_to_vanilla_of_the_same_session() -> None:
    cell = copy_cell()
    assert cell["tokens_per_second"] == {"macro": (5 + 1.25) / 2, "micro": 10 / 5}
    assert cell["speedup"] == {"macro": pytest.approx(3.125), "micro": pytest.approx(2.0)}
    assert cell["answer_tokens_per_second"] == {
        "macro": pytest.approx((6 / 1.5 + 6 / 4.5) / 2),
        "micro": pytest.approx(12 / 6),
    }


def test_times_are_split_and_cores_are_of_decoding() -> None:
    cell = copy_cell()
    assert (cell["prefill_seconds"], cell["decode_seconds"]) == (1.0, 5.0)
    assert (cell["draft_seconds"], cell["verify_seconds"]) == (0.004, pytest.approx(0.036))
    assert cell["cores_used"] == 1.0
    assert cell["cores_used_by_others"] == pytest.approx(0.2 / 6.0)


def test_vanilla_is_one_by_definition() -> None:
    base = plain_run(TOKENS, seconds=5.0)
    cell = make_cell(SETTINGS, VANILLA, [answer(base, base)], command="c", versions={})
    assert cell["block_efficiency"] == 1.0
    assert cell["speedup"] == {"macro": 1.0, "micro": 1.0}
    assert cell["equal_to_vanilla"] == 1
    assert cell["false_copy_rate"] is None
    assert cell["cores_used"] == 2.0


def test_first_difference_at_a_recorded_near_tie_is_a_near_tie() -> None:
    """Position is absolute: three prompt tokens, then output index 2 is position 5."""
    other = (7, 1, 9, 9, 9, 9)
    tied = plain_run(TOKENS, seconds=1.0, ties=(5,))
    assert compare(answer(plain_run(other, seconds=1.0), tied)) == "near_tie"
    for ties in ((), (4,), (6,), (2,)):
        base = plain_run(TOKENS, seconds=1.0, ties=ties)
        assert compare(answer(plain_run(other, seconds=1.0), base)) == "mismatch"


def test_a_shorter_answer_differs_where_it_ends() -> None:
    base = plain_run(TOKENS, seconds=1.0)
    assert compare(answer(plain_run(TOKENS[:4], seconds=1.0), base)) == "mismatch"


def test_a_peers_differences_are_never_excused() -> None:
    """Its margins are unknown, so near-ties are unknown, not zero."""
    peer = Row(label="vllm:ngram", method="vllm:ngram", system="vllm", base="vllm:plain")
    run = Run(
        token_ids=(7, 9),
        prefill_seconds=0.1,
        decode_seconds=0.5,
        prefill_cpu_seconds=0.1,
        decode_cpu_seconds=0.5,
        num_passes=1,
    )
    base = plain_run(TOKENS, seconds=1.0)
    cell = make_cell(SETTINGS, peer, [answer(run, base)], command="c", versions={})
    assert (cell["equal_to_vanilla"], cell["near_ties"], cell["mismatches"]) == (0, None, 1)
    assert cell["share"] == dict.fromkeys(DECODE_SOURCES)
