"""``python -m launch.train gate``: train the gate of switch_sd_plus."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drafters.training.gate_model import GateFit
from launch.answering import AnsweringFlags, answering_engine
from launch.cli import parse, user_errors
from launch.gate_report import write_gate
from launch.gate_training import GateRun, GateTrainer
from launch.probe_training import output_directory
from launch.provenance import provenance

PROG = "python -m launch.train gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFlags(AnsweringFlags):
    """Flags of ``python -m launch.train gate``."""

    out: str
    """Folder for the gate, its provenance with its quality, and the reliability plot."""
    prompts: int = 600
    """CopyDiversity prompts, a fifth of which validates."""
    natural: int = 250
    """ShareGPT prompts, a fifth of which validates."""
    held_out: tuple[str, ...] = ("humaneval",)
    """Workloads of the final check: names or JSONL files, of kinds that are not trained on."""
    held_out_prompts: int = 80
    """Prompts of each, where its name gives no limit."""
    data_dir: Path | None = None
    """Folder with the files of held-out workloads, as for the bench."""
    layers: tuple[int, ...] = ()
    """Layers behind which the probe may read; by default every other one of the later half."""
    seed: int = 0
    """Seed of the prompts, of the walks and of the trees."""


def train_gate(argv: Sequence[str]) -> None:
    """Train the gate and write it with its report."""
    if not sys.stdout.isatty():  # a log file shows no progress bar, so it gets a line per stage
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    flags = parse(GateFlags, argv, prog=PROG, description="Train the gate of switch_sd_plus.")
    with user_errors(PROG):
        run = gate_run(flags)
        folder = output_directory(flags.out)
        trainer = GateTrainer(run, folder / "answers.jsonl")
    origin = provenance(run)
    summary = write_gate(trainer.run(), origin, folder)
    for name, measured in summary["quality"].items():
        auc, error = measured["benefit_auc"] or 0.5, measured["calibration_error"]
        sys.stdout.write(f"{name:12}  benefit AUC {auc:.4f}  calibration error {error:.4f}\n")


def gate_run(flags: GateFlags) -> GateRun:
    """The run that the flags ask for; raises ``ValueError`` for a wrong value."""
    return GateRun(
        engine=answering_engine(flags),
        fit=GateFit(seed=flags.seed),
        num_prompts=flags.prompts,
        num_natural=flags.natural,
        held_out=flags.held_out,
        num_held_out=flags.held_out_prompts,
        data_dir=flags.data_dir,
        max_tokens=flags.max_tokens,
        layers=flags.layers,
    )
