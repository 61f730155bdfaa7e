"""``python -m launch.bench table1``: the methods side by side on one workload.

Also under ``torchrun --nproc-per-node N -m launch.bench``: the ranks form one tensor-parallel
verifier unless the flags say otherwise. Every rank assembles the same engine; the coordinator
measures, the others follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from drafters.assemble import assemble_engine, configured_probe
from engine.engine import SpeculativeEngine
from engine.sampling import SamplingParams
from launch.bench.figure3 import write_figure3
from launch.bench.journal import Journal, Session
from launch.bench.measure import Contestant, EngineContestant, measure
from launch.bench.peers.client import PeerContestant, PeerOptions, start_peers
from launch.bench.plan import BenchFlags, Plan, make_plans
from launch.bench.ranks import joined_mesh, launched_rank, launched_world_size, process_ids
from launch.bench.report import write_report
from launch.bench.runs import Run
from launch.bench.workloads import Prompt
from launch.cli import parse, user_errors
from launch.provenance import command_line, versions, write_provenance

PROG = "python -m launch.bench"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then report everything in the result directory."""
    flags = parse(BenchFlags, argv, prog=PROG, description="Methods side by side on workloads.")
    speaks = launched_rank() == 0
    with user_errors(PROG, speaks=speaks):
        plans = make_plans(flags, world_size=launched_world_size())
        flags.out.mkdir(parents=True, exist_ok=True)
    journal = Journal(flags.out)
    tasks = [task for plan in plans if (task := _task(plan, journal)) is not None]
    if tasks:
        _run(tasks, journal)
    if speaks:
        finished = Journal(flags.out)
        write_report(finished, flags.out)
        if flags.table == "figure3":
            _write_figure3(plans[0], finished)


def _write_figure3(plan: Plan, journal: Journal) -> None:
    """The probe of the engine is the one whose verdicts were recorded."""
    probe = configured_probe(plan.config)
    assert probe is not None, "the row that Figure 3 needs reads a probe"
    found = write_figure3(journal.steps(), probe.threshold, plan.out)
    on, off = found["on"], found["off"]
    ratio = "unknown" if found["ratio"] is None else f"{found['ratio']:.1f}"
    Console().print(
        f"Copies of full length: {on['full']} of {on['copies']} with the probe on, {off['full']} "
        f"of {off['copies']} with it off; ratio {ratio} (paper {found['paper_ratio']}).",
        highlight=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What is still to be measured on one workload."""

    plan: Plan
    session: Session
    prompts: Sequence[Prompt]


def _task(plan: Plan, journal: Journal) -> _Task | None:
    session = _session(plan, journal)
    prompts = [] if session is None else journal.missing(session, plan.prompts)
    if session is None or not prompts:
        return None
    return _Task(plan=plan, session=session, prompts=prompts)


def _session(plan: Plan, journal: Journal) -> Session | None:
    """Rows still to be measured, beside vanilla; against other libraries always all rows."""
    if plan.peers:
        wanted = plan.rows
    else:
        wanted = tuple(r for r in plan.rows if not journal.is_finished(plan.settings, r))
        if wanted and wanted[0] != plan.rows[0]:
            wanted = (plan.rows[0], *wanted)
    if not wanted:
        return None
    return Session(settings=plan.settings, rows=wanted, command=command_line(), versions=versions())


def _run(tasks: Sequence[_Task], journal: Journal) -> None:
    """Every rank: assemble once, and take part in all workloads."""
    config = tasks[0].plan.config
    with joined_mesh(config.tensor_parallel_size, config.pipeline_parallel_size) as mesh:
        with user_errors(PROG, speaks=mesh.is_coordinator):
            also = tuple(variant.speculation for variant in tasks[0].plan.variants)
            engine = assemble_engine(config, mesh, also=also)
        processes = process_ids()
        if not mesh.is_coordinator:
            engine.follow()
            return
        try:
            for task in tasks:
                _measure(task, journal, _ours(task, engine, processes))
        finally:
            engine.stop()


def _ours(
    task: _Task, engine: SpeculativeEngine, processes: tuple[int, ...]
) -> list[EngineContestant]:
    plan, session = task.plan, task.session
    labels = {row.label for row in session.rows}
    return [
        EngineContestant(
            label=variant.label,
            engine=engine,
            speculation=variant.speculation,
            processes=processes,
            sampling=SamplingParams(temperature=plan.settings.temperature),
        )
        for variant in plan.variants
        if variant.label in labels
    ]


def _measure(task: _Task, journal: Journal, ours: Sequence[EngineContestant]) -> None:
    """The coordinator: start the peers, measure, stop them."""
    plan, session, prompts = task.plan, task.session, task.prompts
    write_provenance(plan.out, plan.config)
    journal.open(session)
    with user_errors(PROG):
        peers = start_peers(plan.peers, peer_python=plan.peer_python, options=_peer_options(plan))
    contestants: list[Contestant] = [*ours, *peers]
    try:
        with _progress() as bar:
            shown = bar.add_task(plan.settings.workload, total=len(prompts) * len(contestants))

            def note(label: str, prompt: Prompt, run: Run) -> None:
                journal.add(session, label, prompt, run)
                bar.advance(shown)

            measure(contestants, prompts, max_tokens=plan.settings.max_tokens, on_run=note)
    finally:
        _close(peers)


def _close(peers: Sequence[PeerContestant]) -> None:
    for peer in peers:
        peer.close()


def _peer_options(plan: Plan) -> PeerOptions:
    return PeerOptions(
        peer="",
        mode="",
        python="",
        model=plan.model_directory,
        dtype=plan.config.dtype,
        threads=plan.settings.threads,
        max_model_len=plan.config.max_model_len,
    )


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))


if __name__ == "__main__":
    main()
