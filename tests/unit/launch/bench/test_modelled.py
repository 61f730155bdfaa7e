"""Recorded steps priced for Llama-3.3-70B on eight H100s."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.bench.modelled import llama_70b, modelled_seconds, modelled_speedup
from launch.plan.outcome import drafter_seconds
from tests.unit.launch.bench.runs import copy_run, plain_run, record

TOKENS = (7, 1, 2, 3, 4, 5)


def test_a_plain_step_costs_one_row_at_the_answers_length() -> None:
    one_row = llama_70b().cost(1, context=512).total
    run = plain_run(TOKENS, seconds=1.0)
    assert modelled_seconds(run, 300) == pytest.approx(run.num_passes * one_row)


def test_fewer_passes_are_faster_and_drafting_costs() -> None:
    pair = (copy_run(TOKENS, seconds=9.0), plain_run(TOKENS, seconds=1.0), 10)
    assert (modelled_speedup([pair]) or 0.0) > 1.5, "whatever the seconds measured here were"
    drafted = record(source="neural", drafted=3, rows=4, drafter_calls=1)
    run = replace(pair[0], records=(drafted,))
    whole = modelled_seconds(run, 10) or 0.0
    passes = llama_70b().cost(4, context=256).total
    assert whole - passes == pytest.approx(3 * drafter_seconds(llama_70b(), context=256))
    assert modelled_seconds(replace(run, records=()), 10) is None, "a peer records no steps"
