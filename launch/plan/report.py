"""The plan as tables for the terminal and as JSON; every number says where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from launch.plan.acceptance import Acceptance
from launch.plan.machine import Machine
from launch.plan.memory import RankMemory
from launch.plan.outcome import Choice, Load, best
from launch.plan.steptime import StepTimeModel

SHOWN_ROWS = (1, 2, 4, 6, 11, 21, 41, 61, 101, 128, 201, 256)
_GIB = 2.0**30


def memory_table(memory: RankMemory, *, ranks: int) -> Table:
    """What a rank holds."""
    table = _table(f"Memory of each of {ranks} ranks (modelled; device size reported)")
    table.add_column("what")
    table.add_column("GiB", justify="right")
    for name in ("size", "weights", "workspace", "free"):
        table.add_row(name, f"{getattr(memory, name) / _GIB:.1f}")
    table.add_row("tokens of keys and values that fit", f"{memory.kv_tokens:,}")
    return table


def step_table(model: StepTimeModel, load: Load) -> Table:
    """Milliseconds of a pass by its rows."""
    origins = sorted({one.origin for one in model.machine.parameters.values()})
    title = (
        f"Step time on {model.machine.name}, context {load.context:.0f}, batch {load.batch} "
        f"(modelled; parameters {', '.join(origins)})"
    )
    table = _table(title)
    names = ("products", "attention", "all_reduce", "head", "gaps", "total")
    for name in ("rows", *(f"{name} ms" for name in names), "of one row"):
        table.add_column(name, justify="right")
    plain = model.cost(1, context=load.context, batch=load.batch).total
    for rows in SHOWN_ROWS:
        cost = model.cost(rows, context=load.context, batch=load.batch)
        parts = [f"{getattr(cost, name) * 1e3:.2f}" for name in names]
        table.add_row(str(rows), *parts, f"{cost.total / plain:.2f}x")
    return table


def choice_table(title: str, found: Sequence[Choice]) -> Table:
    """Tokens per second by draft length; the best one is marked."""
    table = _table(title)
    for name in ("drafted", "tokens/pass", "pass ms", "tokens/s", "over plain", ""):
        table.add_column(name, justify="right")
    for choice in found:
        table.add_row(
            str(choice.length),
            f"{choice.tokens_per_pass:.2f}",
            f"{choice.seconds * 1e3:.2f}",
            f"{choice.tokens_per_second:.1f}",
            f"{choice.tokens_per_second / found[0].tokens_per_second:.2f}x",
            "best" if choice == best(found) else "",
        )
    return table


def as_json(
    model: StepTimeModel,
    load: Load,
    memory: RankMemory,
    acceptance: Acceptance,
    drafts: dict[str, list[Choice]],
) -> dict[str, Any]:
    """Everything, for other programs."""
    costs = {rows: model.cost(rows, context=load.context, batch=load.batch) for rows in SHOWN_ROWS}
    return {
        "machine": model.machine.name,
        "parameters": parameters_json(model.machine),
        "layout": asdict(model.layout),
        "load": asdict(load),
        "memory": {**asdict(memory), "free": memory.free, "kv_tokens": memory.kv_tokens},
        "step_seconds": {
            rows: {**asdict(cost), "total": cost.total} for rows, cost in costs.items()
        },
        "acceptance": asdict(acceptance),
        "drafts": {name: [asdict(choice) for choice in found] for name, found in drafts.items()},
        "best": {name: asdict(best(found)) for name, found in drafts.items()},
    }


def parameters_json(machine: Machine) -> dict[str, Any]:
    """With their units and origins."""
    return {name: asdict(one) for name, one in machine.parameters.items()}


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", min_width=len(title))
