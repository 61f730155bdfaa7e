"""``python -m launch.replay --traces FILE``: recorded answers through methods.

``record`` writes such files (``launch/replay/record.py``). Tokens per pass need no model and no
time; tokens per time come from the planner's step-time model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from drafters.pretrained import shipped_gate, shipped_probe
from engine import metrics
from engine.drafting import Drafters, LoadedDrafter
from engine.gate import Gate, load_gate
from engine.policies import NO_GATE
from engine.probe import Probe, load_probe
from engine.speculation import SpeculationConfig
from launch.bench.methods import Variant, parse_variants
from launch.cli import Repeated, parse, user_errors
from launch.plan.machine import load_machine
from launch.plan.outcome import drafter_seconds
from launch.plan.steptime import Layout, StepTimeModel
from launch.plan.verifier import verifier_shape
from launch.recipes import LLAMA_70B, SMOLLM2
from launch.replay.oracle import oracle_tokens_per_pass
from launch.replay.record import record
from launch.replay.stream import Clock, RecordedDrafter, Replay, Replayed
from launch.traces import Trace, load_traces

PROG = "python -m launch.replay"
_NEURAL = "drafter=eagle3:num_speculative_tokens=7"
_METHODS = ",".join(
    (
        "eagle3=eagle3:num_speculative_tokens=7",
        "prompt_lookup,copy_spec",
        f"copy_spec_eagle3=copy_spec:{_NEURAL}",
        "sam_decoding",
        f"sam_eagle3=sam_decoding:{_NEURAL}",
        f"always_copy_5=switch_sd:probe_threshold=0:{_NEURAL}",
        f"always_copy_3=switch_sd:probe_threshold=0:copy_match_length=3:{_NEURAL}",
        f"bandit_spec=bandit_spec:{_NEURAL}",
        f"rasd=rasd:draft_tree_top_k=1:{_NEURAL}",
        "switch_sd_plus_alone=switch_sd_plus",
        f"switch_sd_plus=switch_sd_plus:{_NEURAL}",
    )
)
_PROBED = (
    f"switch_sd_5=switch_sd:copy_match_length=5:{_NEURAL},"
    f"switch_sd_3=switch_sd:copy_match_length=3:{_NEURAL}"
)
"""Only where the probe's scores were recorded."""
ORACLE_LENGTHS = (5, 3)
REPLAYED_DRAFTERS = ("none", "eagle3")
"""Drafters that a trace knows the answers of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFlags:
    """Flags of ``python -m launch.replay``."""

    traces: Repeated[tuple[Path, ...]] = ()
    """Recorded answers (JSON Lines, docs/planning.md), once per file."""
    methods: str | None = None
    """Rows as for the bench: METHOD:KEY=VALUE, or NAME=METHOD:KEY=VALUE. By default every method
    that the traces can answer."""
    limit: int | None = None
    """Answers of each file; by default all."""
    probe: str | None = None
    """Probe file of switch_sd, for its thresholds; by default the one shipped for SmolLM2."""
    gate: str | None = None
    """Gate file of switch_sd_plus; by default the one shipped for SmolLM2."""
    machine: str = "h100_sxm"
    """Whose step times decide and price the steps: a shipped machine or a file."""
    model: str = LLAMA_70B
    """The verifier that is priced."""
    gpus: int = 8
    """Its tensor-parallel ranks."""
    context: int = 1024
    """Context at which steps are priced."""
    json: Path | None = None
    """Also write everything to this file."""


def main(argv: Sequence[str] | None = None) -> None:
    """Replay, or record."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["record"]:
        record(words[1:])
    else:
        replay(words)


def replay(argv: Sequence[str]) -> None:
    """Replay every file and show a table for each."""
    flags = parse(ReplayFlags, argv, prog=PROG, description="Recorded answers through methods.")
    with user_errors(PROG):
        if not flags.traces:
            raise ValueError("--traces must name at least one file.")
        files = {path.stem: load_traces(path, limit=flags.limit) for path in flags.traces}
        methods = flags.methods or _methods(files)
        variants = [v for v in parse_variants(methods) if v.label in methods]
        readers = Drafters(probe=_probe(flags, variants), gate=_gate(flags, variants))
        for variant in variants:
            _check(variant, files)
        model = StepTimeModel(
            machine=load_machine(flags.machine),
            model=verifier_shape(flags.model),
            layout=Layout(tensor_parallel=flags.gpus),
        )
        model.cost(1, context=flags.context)
    found = {
        name: _rows(traces, variants, readers, model, flags.context)
        for name, traces in files.items()
    }
    console = Console(width=None if sys.stdout.isatty() else 120)
    for name, rows in found.items():
        console.print(
            _table(
                f"{name}, {len(files[name])} answers, priced for {flags.model} on "
                f"{flags.gpus} {flags.machine} (modelled)",
                rows,
            )
        )
    if flags.json is not None:
        flags.json.write_text(json.dumps({k: [asdict(r) for r in v] for k, v in found.items()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A method on one file."""

    method: str
    tokens_per_pass: float
    rows_per_pass: float | None = None
    shares: dict[metrics.DecodeSource, float | None] | None = None
    speedup: float | None = None
    """Tokens per modelled time, relative to plain decoding."""


def _rows(
    traces: Sequence[Trace],
    variants: Sequence[Variant],
    readers: Drafters,
    model: StepTimeModel,
    context: int,
) -> list[Row]:
    each = drafter_seconds(model, context=context)
    rows = [_row(variant, traces, readers, model, context, each) for variant in variants]
    oracles = [
        Row(
            method=f"oracle_{length} (by hindsight)",
            tokens_per_pass=oracle_tokens_per_pass(traces, match_length=length),
        )
        for length in ORACLE_LENGTHS
    ]
    return [*rows, *oracles]


def _row(
    variant: Variant,
    traces: Sequence[Trace],
    readers: Drafters,
    model: StepTimeModel,
    context: int,
    each: float,
) -> Row:
    drafter = RecordedDrafter(clock=Clock(), seconds_per_token=each)
    drafting = replace(
        readers, neural={variant.speculation.drafter_key: LoadedDrafter(drafter=drafter)}
    ).drafting(variant.speculation)
    replayed = Replay(drafting, drafter, model.table(context=context)).run(traces)
    return Row(
        method=variant.label,
        tokens_per_pass=replayed.tokens_per_pass,
        rows_per_pass=sum(step.rows for step in replayed.records) / len(replayed.records),
        shares=metrics.shares(replayed.records),
        speedup=_speedup(replayed, model, context, drafter.clock.now),
    )


def _speedup(replayed: Replayed, model: StepTimeModel, context: int, drafting: float) -> float:
    seconds = drafting + sum(
        model.cost(step.rows, context=context).total for step in replayed.records
    )
    tokens = sum(step.output for step in replayed.records)
    return tokens * model.cost(1, context=context).total / seconds


def _methods(files: dict[str, tuple[Trace, ...]]) -> str:
    is_probed = all(trace.probe_scores for traces in files.values() for trace in traces)
    return f"{_METHODS},{_PROBED}" if is_probed else _METHODS


def _probe(flags: ReplayFlags, variants: Sequence[Variant]) -> Probe | None:
    path = flags.probe or shipped_probe(SMOLLM2)
    if path is None or not any(variant.speculation.reads_probe for variant in variants):
        return None
    return load_probe(Path(path))


def _gate(flags: ReplayFlags, variants: Sequence[Variant]) -> Gate | None:
    if not any(variant.speculation.reads_gate for variant in variants):
        return None
    path = flags.gate or shipped_gate(SMOLLM2)
    if path is None:
        raise ValueError(NO_GATE)
    return load_gate(Path(path))


def _check(variant: Variant, files: dict[str, tuple[Trace, ...]]) -> None:
    """Refuse what a recorded stream cannot answer."""
    speculation: SpeculationConfig = variant.speculation
    if speculation.drafter not in REPLAYED_DRAFTERS:
        raise ValueError(
            f"row {variant.label!r} needs drafter {speculation.drafter!r}, and traces know the "
            f"answers of {' and '.join(REPLAYED_DRAFTERS)} only."
        )
    if speculation.method == "lookahead":
        raise ValueError(
            f"row {variant.label!r} asks the verifier about guesses, and a trace knows the "
            "recorded tokens only."
        )
    if speculation.reads_probe:
        for name, traces in files.items():
            if not all(trace.probe_scores for trace in traces):
                raise ValueError(
                    f"row {variant.label!r} reads a probe, and {name} has no probe_scores: give it "
                    "probe_threshold=0, or leave it out."
                )


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", min_width=len(title))
    table.add_column("method")
    for name in ("tokens/pass", "rows/pass", "copy %", "neural %", "merged %", "speedup"):
        table.add_column(name, justify="right")
    for row in rows:
        shares = row.shares or metrics.shares(())
        table.add_row(
            row.method,
            f"{row.tokens_per_pass:.3f}",
            "-" if row.rows_per_pass is None else f"{row.rows_per_pass:.1f}",
            *(_percent(shares[source]) for source in metrics.DRAFT_SOURCES),
            "-" if row.speedup is None else f"{row.speedup:.2f}x",
        )
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}"


if __name__ == "__main__":
    main()
