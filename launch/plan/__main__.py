"""``python -m launch.plan``: memory, step time, tokens per second, lookahead and row budget.

No GPU is needed: times come from the step-time model and a machine's parameters. ``calibrate``
measures those on the machine that it runs on, ``check`` says how far off predictions are.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from drafters.assemble import assemble_engine
from engine.speculation import speculation
from launch.cli import Repeated, parse, user_errors
from launch.plan.acceptance import ASSUMED, Acceptance, from_traces
from launch.plan.calibrate import (
    CHECK_CONTEXTS,
    CHECK_ROWS,
    FIT_CONTEXTS,
    FIT_ROWS,
    Timing,
    fit_machine,
    relative_errors,
    time_passes,
)
from launch.plan.machine import Machine, load_machine, save_machine
from launch.plan.memory import rank_memory
from launch.plan.outcome import Choice, Load, choices, drafter_seconds
from launch.plan.report import as_json, choice_table, memory_table, step_table
from launch.plan.steptime import Layout, StepTimeModel
from launch.plan.verifier import verifier_shape, weight_bytes
from launch.recipes import EngineFlags, engine_config
from parallel.mesh import Mesh

PROG = "python -m launch.plan"
_LONGEST = max(FIT_CONTEXTS) + max(FIT_ROWS) + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags(EngineFlags):
    """Flags of ``python -m launch.plan``."""

    gpus: int | None = None
    """Devices; by default what the recipe's tensor and pipeline sizes need."""
    machine: str = "h100_sxm"
    """A shipped machine, or a file that calibrate wrote."""
    context: int = 2048
    """Tokens of each sequence."""
    batch: int = 1
    """Sequences that decode together."""
    traces: Repeated[tuple[Path, ...]] = ()
    """Recorded acceptance (JSON Lines); by default assumed rates."""
    json: Path | None = None
    """Also write everything to this file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateFlags(EngineFlags):
    """Flags of ``python -m launch.plan calibrate``."""

    out: Path = Path("machine.json")
    """File for the machine's parameters."""
    repetitions: int = 7
    """Timed passes of every point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFlags(EngineFlags):
    """Flags of ``python -m launch.plan check``."""

    machine: str = "machine.json"
    """A machine file that calibrate wrote here."""
    repetitions: int = 7
    """Timed passes of every point."""


def main(argv: Sequence[str] | None = None) -> None:
    """Plan, calibrate or check."""
    words = list(sys.argv[1:] if argv is None else argv)
    part = {"calibrate": calibrate, "check": check}.get(words[0] if words else "")
    if part is None:
        plan(words)
    else:
        part(words[1:])


def plan(argv: Sequence[str]) -> None:
    """Show what the recipe needs and what it would bring."""
    flags = parse(PlanFlags, argv, prog=PROG, description="Plan a deployment without a GPU.")
    with user_errors(PROG):
        config, shape = engine_config(flags), None
        if flags.context < 1 or flags.batch < 1:
            raise ValueError("--context and --batch must be 1 or more.")
        stages = config.pipeline_parallel_size
        gpus = config.num_ranks if flags.gpus is None else flags.gpus
        if gpus < 1 or gpus % stages:
            raise ValueError(
                f"--gpus must be a multiple of the {stages} pipeline stages, not {gpus}."
            )
        machine, shape = load_machine(flags.machine), verifier_shape(config.model)
        each, ranks = weight_bytes(config), gpus // stages
        model = StepTimeModel(
            machine=machine,
            model=shape,
            layout=Layout(tensor_parallel=ranks, weight_bytes=each, kv_bytes=each),
        )
        load = Load(context=flags.context, batch=flags.batch)
        model.cost(1, context=load.context)
        acceptance = from_traces(flags.traces) if flags.traces else ASSUMED
    memory = rank_memory(
        machine, shape, tensor_parallel=ranks, pipeline_parallel=stages, bytes_per_weight=each
    )
    drafts = _drafts(model, load, acceptance)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(memory_table(memory, ranks=gpus))
    if memory.kv_tokens < load.context * load.batch:
        console.print(
            f"Does not fit: {load.batch} x {load.context} tokens are wanted and {memory.kv_tokens} "
            "fit; use more devices, or a smaller --batch or --context."
        )
    console.print(step_table(model, load))
    for name, found in drafts.items():
        console.print(choice_table(f"{name}; acceptance {acceptance.source}", found))
    if flags.json is not None:
        text = json.dumps(as_json(model, load, memory, acceptance, drafts), indent=1)
        flags.json.write_text(text + "\n", encoding="utf-8")


def _drafts(model: StepTimeModel, load: Load, acceptance: Acceptance) -> dict[str, list[Choice]]:
    each = drafter_seconds(model, context=load.context)
    return {
        "Neural lookahead": choices(model, load, acceptance.neural, draft_seconds=each),
        "Copied rows": choices(model, load, acceptance.copies, draft_seconds=0.0),
    }


def calibrate(argv: Sequence[str]) -> None:
    """Time passes here, fit the parameters, write the machine file."""
    prog = f"{PROG} calibrate"
    flags = parse(CalibrateFlags, argv, prog=prog, description="Fit the model to this machine.")
    with user_errors(prog):
        layout, timings = _measured(flags, FIT_ROWS, FIT_CONTEXTS, flags.repetitions)
    memory_size = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    shape = verifier_shape(engine_config(flags).model)
    machine = fit_machine(flags.out.stem, timings, shape, layout=layout, memory_size=memory_size)
    save_machine(machine, flags.out)
    _say(machine, relative_errors(machine, timings, shape, layout=layout), "fitted")


def check(argv: Sequence[str]) -> None:
    """Time passes that the fit did not see, and compare."""
    prog = f"{PROG} check"
    flags = parse(CheckFlags, argv, prog=prog, description="Compare predictions with passes here.")
    with user_errors(prog):
        machine = load_machine(flags.machine)
        layout, timings = _measured(flags, CHECK_ROWS, CHECK_CONTEXTS, flags.repetitions)
    shape = verifier_shape(engine_config(flags).model)
    errors = relative_errors(machine, timings, shape, layout=layout)
    _say(machine, errors, "unseen")
    for one, error in zip(timings, errors, strict=True):
        sys.stdout.write(
            f"rows {one.rows:4d}  context {one.context:5d}  {one.seconds * 1e3:8.2f} ms  "
            f"error {error:6.1%}\n"
        )


def _measured(
    flags: EngineFlags, rows: Sequence[int], contexts: Sequence[int], repetitions: int
) -> tuple[Layout, list[Timing]]:
    if repetitions < 1:
        raise ValueError(f"--repetitions must be 1 or more, not {repetitions}.")
    config = engine_config(replace(flags, max_model_len=_LONGEST, max_num_seqs=1))
    config = replace(config, speculation=speculation("vanilla"))
    engine = assemble_engine(config, Mesh.single())
    timings = time_passes(
        lambda count, context: engine.rehearse(count, context=context),
        rows,
        contexts,
        repetitions=repetitions,
    )
    each = weight_bytes(config)
    return Layout(weight_bytes=each, kv_bytes=each), timings


def _say(machine: Machine, errors: Sequence[float], which: str) -> None:
    sys.stdout.write(
        f"{machine.name}: median error {statistics.median(errors):.1%}, worst {max(errors):.1%} "
        f"over {len(errors)} {which} passes\n"
    )


if __name__ == "__main__":
    main()
