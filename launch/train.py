"""``python -m launch.train PART``: train a part: the probe, or a neural drafter."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from drafters.training.eagle3 import Eagle3Training
from drafters.training.loop import TrainingData, TrainingResult
from drafters.training.probe import ProbeTrainingConfig
from launch.answering import AnsweringFlags, answering_engine
from launch.cli import USER_ERROR, parse, user_errors
from launch.distillation import (
    DistillationRun,
    SteeringRun,
    check_cut,
    train_small,
    train_steered,
    write_summary,
)
from launch.drafter_run import (
    DrafterFlags,
    collect_data,
    data_config,
    training_config,
    verifier_config,
)
from launch.eagle3_training import Eagle3Run, load_start, train_head, write_head
from launch.medusa_training import train_medusa
from launch.probe_report import write_probe
from launch.probe_training import ProbeRun, ProbeTrainer, output_directory
from launch.provenance import provenance
from launch.train_ablation import train_ablation
from launch.train_gate import train_gate
from launch.training_ranks import TrainingRanks, training_ranks

PROG = "python -m launch.train"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFlags(AnsweringFlags):
    """Flags of ``python -m launch.train probe``."""

    out: str
    """Folder for the probe, its provenance, report and plots."""
    prompts: int = 1_000
    """CopyDiversity prompts, a fifth of which validates."""
    humaneval: int = 164
    """HumanEval prompts of the held-out check."""
    sweep_rows: int = 40
    """Tokens of each answer that the sweep over all layers looks at."""
    seed: int = 0
    """Seed of the prompts, of the split and of the tokens drawn for the sweep."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train the part named first on the command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in _PARTS:
        _PARTS[words[0]](words[1:])
        return 0
    usage = f"the part to train comes first, one of: {', '.join(_PARTS)}"
    if words and words[0] in ("-h", "--help"):
        sys.stdout.write(f"usage: {PROG} PART [flags]; {usage}; {PROG} PART --help lists flags\n")
        return 0
    sys.stderr.write(f"{PROG}: {usage}{f', not {words[0]!r}' if words else ''}.\n")
    return USER_ERROR


def train_probe(argv: Sequence[str]) -> None:
    """Train the copy-intent probe of a verifier and write it with its report."""
    prog = f"{PROG} probe"
    if not sys.stdout.isatty():  # a log file shows no progress bar, so it gets a line per stage
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    flags = parse(ProbeFlags, argv, prog=prog, description="Train a verifier's copy-intent probe.")
    with user_errors(prog):
        run = probe_run(flags)
        folder = output_directory(flags.out)
        trainer = ProbeTrainer(run, folder / "answers.jsonl")
    origin = provenance(run)
    summary = write_probe(trainer.run(), origin, folder)
    for name, measured in summary["quality"].items():
        sys.stdout.write(f"{name:10}  AUC {measured['auc']:.4f}  F1 {measured['f1']:.4f}\n")


def probe_run(flags: ProbeFlags) -> ProbeRun:
    """The run that the flags ask for; raises ``ValueError`` for a wrong value.

    Answers are drafted by prompt look-up, which changes nothing but the time they take.
    """
    return ProbeRun(
        engine=answering_engine(flags),
        training=ProbeTrainingConfig(seed=flags.seed),
        num_prompts=flags.prompts,
        num_held_out=flags.humaneval,
        max_tokens=flags.max_tokens,
        sweep_rows=flags.sweep_rows,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Flags(DrafterFlags):
    """Flags of ``python -m launch.train eagle3``."""

    draft_vocab_size: int = 6_144
    """Most frequent generated tokens that the head can propose."""
    unroll: int = 5
    """Drafts per chain in training (training-time test)."""
    start: str | None = None
    """Directory of a head to go on from; by default a fresh one starts from the verifier."""


def train_eagle3(argv: Sequence[str]) -> None:
    """Train an EAGLE-3 head and write it as a checkpoint that SGLang's layout describes."""
    prog = f"{PROG} eagle3"
    flags = parse(Eagle3Flags, argv, prog=prog, description="Train an EAGLE-3 head.")
    with user_errors(prog):
        run = Eagle3Run(
            engine=verifier_config(flags),
            training=training_config(flags),
            data=data_config(flags),
            head=Eagle3Training(num_steps=flags.unroll),
            draft_vocab_size=flags.draft_vocab_size,
            start=flags.start,
        )
        load_start(run)
        folder = output_directory(flags.out)
    origin = provenance(run)
    with (
        training_ranks(flags.tensor_parallel_size) as ranks,
        user_errors(prog, speaks=ranks.is_first),
    ):
        data = collect_data(run.engine, run.data, folder, ranks)
        head, result = train_head(run, data, folder, ranks)
        if ranks.is_first:
            summary = write_head(head, result, data, origin, folder)
            sys.stdout.write(f"{json.dumps(summary['validation'])}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFlags(DrafterFlags):
    """Flags of ``python -m launch.train small``."""

    layers: tuple[int, ...] = (0, 1, 2, 29)
    """Layers of the verifier that the drafter keeps."""
    start: str | None = None
    """Directory of a drafter to go on from; by default a fresh one is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredFlags(SmallFlags):
    """Flags of ``python -m launch.train steered``."""

    lookahead: int = 5
    """Offsets that are trained: the longest draft."""
    offsets: str = "one"
    """Rows that share an offset: one (the method), random or block."""
    frozen_drafter: bool = False
    """Train the steering head alone."""


def train_small_drafter(argv: Sequence[str]) -> None:
    """Distil a small drafter that is cut from the verifier."""
    prog = f"{PROG} small"
    flags = parse(SmallFlags, argv, prog=prog, description="Distil a small drafter.")
    with user_errors(prog):
        run = DistillationRun(**_distillation(flags))
    _distil(run, flags, prog, train_small)


def train_steered_drafter(argv: Sequence[str]) -> None:
    """Train a small drafter with steering, or the steering alone."""
    prog = f"{PROG} steered"
    flags = parse(SteeredFlags, argv, prog=prog, description="Train a steered small drafter.")
    with user_errors(prog):
        run = SteeringRun(
            **_distillation(flags),
            lookahead=flags.lookahead,
            offsets=flags.offsets,
            frozen_drafter=flags.frozen_drafter,
        )
    _distil(run, flags, prog, train_steered)


def _distillation(flags: SmallFlags) -> dict[str, Any]:
    """The fields that both runs have; raises ``ValueError`` for a wrong value."""
    return {
        "engine": verifier_config(flags),
        "training": training_config(flags),
        "data": data_config(flags),
        "layers": flags.layers,
        "start": flags.start,
    }


_Run = TypeVar("_Run", bound=DistillationRun)


def _distil(
    run: _Run,
    flags: DrafterFlags,
    prog: str,
    train: Callable[[_Run, TrainingData, Path, TrainingRanks], TrainingResult],
) -> None:
    with user_errors(prog):
        check_cut(run)
        folder = output_directory(flags.out)
    origin = provenance(run)
    with (
        training_ranks(flags.tensor_parallel_size) as ranks,
        user_errors(prog, speaks=ranks.is_first),
    ):
        data = collect_data(run.engine, run.data, folder, ranks)
        result = train(run, data, folder, ranks)
        if ranks.is_first:
            write_summary(result, data, origin, folder)
            sys.stdout.write(f"{json.dumps(result.validation)}\n")


_PARTS: dict[str, Callable[[Sequence[str]], None]] = {
    "probe": train_probe,
    "gate": train_gate,
    "ablation": train_ablation,
    "eagle3": train_eagle3,
    "small": train_small_drafter,
    "steered": train_steered_drafter,
    "medusa": train_medusa,
}


if __name__ == "__main__":
    sys.exit(main())
