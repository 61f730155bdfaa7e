"""``python -m launch.train PART``: train a part. Only the probe can be trained yet."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafters.training.probe import ProbeTrainingConfig
from launch.cli import USER_ERROR, parse, user_errors
from launch.probe_report import write_probe
from launch.probe_training import ProbeRun, ProbeTrainer, output_directory
from launch.provenance import provenance
from launch.recipes import EngineFlags, engine_config

PROG = "python -m launch.train"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFlags:
    """Flags of ``python -m launch.train probe``."""

    out: str
    """Folder for the probe, its provenance, report and plots."""
    recipe: str = "smollm2"
    """Named configuration of the verifier."""
    model: str | None = None
    """Verifier weights: a hub id, a directory, or package:NAME for weights inside a package."""
    dtype: str | None = None
    """Precision in which the verifier answers; states are captured in float32."""
    num_threads: int | None = None
    """Threads; by default all cores."""
    prompts: int = 1_000
    """CopyDiversity prompts, a fifth of which validates."""
    humaneval: int = 164
    """HumanEval prompts of the held-out check."""
    max_tokens: int = 192
    """Longest answer in tokens."""
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
    return ProbeRun(
        engine=engine,
        training=ProbeTrainingConfig(seed=flags.seed),
        num_prompts=flags.prompts,
        num_held_out=flags.humaneval,
        max_tokens=flags.max_tokens,
        sweep_rows=flags.sweep_rows,
    )


_PARTS: dict[str, Callable[[Sequence[str]], None]] = {"probe": train_probe}


if __name__ == "__main__":
    sys.exit(main())
