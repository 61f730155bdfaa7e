"""``python -m launch.train gate``: train the gate of switch_sd_plus."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drafters.training.gate_model import GateFit
from launch.cli import parse, user_errors
from launch.gate_report import write_gate
from launch.gate_training import GateRun, GateTrainer
from launch.probe_training import output_directory
from launch.provenance import provenance
from launch.recipes import EngineFlags, engine_config

PROG = "python -m launch.train gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFlags:
    """Flags of ``python -m launch.train gate``."""

    out: str
    """Folder for the gate, its provenance with its quality, and the reliability plot."""
    recipe: str = "smollm2"
    """Named configuration of the verifier."""
    model: str | None = None
    """Verifier weights: a hub id, a directory, or package:NAME for weights inside a package."""
    dtype: str | None = None
    """Precision in which the verifier answers; states are captured in float32."""
    num_threads: int | None = None
    """Threads; by default all cores."""
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
    max_tokens: int = 192
    """Longest answer in tokens."""
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
    engine = engine_config(
        EngineFlags(
            recipe=flags.recipe,
            model=flags.model,
            dtype=flags.dtype,
            num_threads=flags.num_threads,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            speculative_config='{"method": "prompt_lookup"}',
        )
    )
    return GateRun(
        engine=engine,
        fit=GateFit(seed=flags.seed),
        num_prompts=flags.prompts,
        num_natural=flags.natural,
        held_out=flags.held_out,
        num_held_out=flags.held_out_prompts,
        data_dir=flags.data_dir,
        max_tokens=flags.max_tokens,
        layers=flags.layers,
    )
