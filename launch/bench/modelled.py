"""The same steps on other hardware: what they would take for Llama-3.3-70B on eight H100s.

Every recorded step is priced by the planner's step-time model (``launch/plan``): its rows at the
answer's length, and its drafted tokens by a modelled drafter of one verifier layer. Drafts were
found and cut for the machine that ran them, where rows are dearer, so that a method with wide
drafts would gain more there than this says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from engine import metrics
from launch.bench.runs import Run
from launch.plan.machine import load_machine
from launch.plan.outcome import drafter_seconds
from launch.plan.steptime import Layout, StepTimeModel
from launch.plan.verifier import verifier_shape
from launch.recipes import LLAMA_70B

RANKS = 8
CONTEXT_STEP = 256
"""Contexts are rounded up to this: the price hardly depends on them."""


@cache
def llama_70b() -> StepTimeModel:
    """In bf16 on eight H100s, tensor-parallel."""
    return StepTimeModel(
        machine=load_machine("h100_sxm"),
        model=verifier_shape(LLAMA_70B),
        layout=Layout(tensor_parallel=RANKS),
    )


@cache
def _pass_seconds(rows: int, context: int) -> float:
    return llama_70b().cost(rows, context=context).total


@cache
def _draft_seconds(context: int) -> float:
    return drafter_seconds(llama_70b(), context=context)


def modelled_seconds(run: Run, prompt_length: int) -> float | None:
    """Decoding time of an answer there; None where its steps were not recorded."""
    if not run.records:
        return None
    length = prompt_length + len(run.token_ids)
    context = -(-length // CONTEXT_STEP) * CONTEXT_STEP
    return sum(
        _pass_seconds(step.rows, context)
        + (step.drafted * _draft_seconds(context) if step.drafter_calls else 0.0)
        for step in metrics.decode_steps(run.records)
    )


def modelled_speedup(pairs: Sequence[tuple[Run, Run, int]]) -> float | None:
    """Total modelled time of the plain runs / of the runs: (run, plain run, prompt length) each."""
    ours = [modelled_seconds(run, length) for run, _, length in pairs]
    plain = [modelled_seconds(base, length) for _, base, length in pairs]
    if None in ours or None in plain or not sum(filter(None, ours)):
        return None
    return sum(filter(None, plain)) / sum(filter(None, ours))
