"""Hand-made runs: a few steps whose numbers can be counted in the head."""

from __future__ import annotations

from engine.records import NearTie, StepRecord
from launch.bench.cells import Row, Settings
from launch.bench.runs import Run

SETTINGS = Settings(
    workload="w",
    recipe="r",
    model="m",
    dtype="bfloat16",
    exactness="strict",
    kernels="auto",
    threads=2,
    tp=1,
    pp=1,
    prompts=2,
    max_tokens=8,
)
VANILLA = Row(label="vanilla", method="vanilla", system="switchsteer", base="vanilla")
COPY = Row(
    label="copy_spec:x=1",
    method="copy_spec",
    system="switchsteer",
    base="vanilla",
    speculation={"method": "copy_spec"},
)


def record(**changes: object) -> StepRecord:
    """A plain step, some fields changed."""
    fields: dict[str, object] = {
        "request": "generate-0",
        "step": 1,
        "source": "plain",
        "drafted": 0,
        "rows": 1,
        "accepted": 0,
        "output": 1,
        "draft_ms": 1.0,
        "verify_ms": 9.0,
    }
    return StepRecord(**{**fields, **changes})  # type: ignore[arg-type]


def plain_run(token_ids: tuple[int, ...], *, seconds: float, ties: tuple[int, ...] = ()) -> Run:
    """One pass per token after the first; ``ties`` are absolute positions of near-ties."""
    near = tuple(NearTie(position=position, margin=0.01) for position in ties)
    prefill = record(source="prefill", rows=3, near_ties=near)
    steps = [record(step=step) for step in range(2, len(token_ids) + 1)]
    return Run(
        token_ids=token_ids,
        prefill_seconds=0.5,
        decode_seconds=seconds,
        prefill_cpu_seconds=0.5,
        decode_cpu_seconds=2 * seconds,
        num_passes=len(steps),
        records=(prefill, *steps),
    )


def copy_run(token_ids: tuple[int, ...], *, seconds: float) -> Run:
    """One copy step for everything but the first token, and one empty copy before it."""
    decoded = len(token_ids) - 1
    empty = record(source="copy", drafted=4, rows=5, output=1)
    full = record(source="copy", drafted=9, rows=10, accepted=decoded - 2, output=decoded - 1)
    return Run(
        token_ids=token_ids,
        prefill_seconds=0.5,
        decode_seconds=seconds,
        prefill_cpu_seconds=0.5,
        decode_cpu_seconds=seconds,
        num_passes=2,
        records=(record(source="prefill", rows=3), empty, full),
        idle_cpu_seconds=0.1,
    )
