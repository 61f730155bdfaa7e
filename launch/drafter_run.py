"""What every training of a neural drafter shares: flags, ranks, and answers before training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drafters.assemble import assemble_engine
from drafters.training.config import BackendName, TrainingConfig, TrainingPrecision
from drafters.training.loop import TrainingData
from engine.config import EngineConfig
from launch.drafter_data import DataConfig, answered, split, training_prompts
from launch.progress import progress_bar, stage_progress
from launch.recipes import EngineFlags, engine_config
from parallel.data_parallel import DataParallel, data_parallel_world, wait_for_all
from parallel.mesh import Mesh
from parallel.rendezvous import destroy_process_group, init_from_torchrun

ANSWERS_AT_ONCE = 16
"""Requests that answer together: a wide step costs little more than a narrow one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFlags:
    """Flags that every neural training has."""

    out: str
    """Folder for answers, checkpoints, logs and the trained drafter."""
    recipe: str = "smollm2"
    """Named configuration of the verifier."""
    model: str | None = None
    """Verifier weights: a hub id, a directory, or package:NAME for weights inside a package."""
    dtype: str | None = None
    """Precision of the verifier, answering and being read."""
    sharegpt: int = 3_000
    """First turns of ShareGPT conversations to train on."""
    copy_diverse: int = 1_000
    """CopyDiversity prompts to train on."""
    python: int = 1_000
    """Functions of Python's standard library to train on."""
    max_prompt_tokens: int = 512
    """Longer ShareGPT and Python prompts are left out."""
    max_tokens: int = 192
    """Longest answer in tokens."""
    epochs: int = 2
    """Passes over the data."""
    tokens_per_batch: int = 2_048
    """Tokens of a micro-batch on one rank."""
    gradient_accumulation: int = 1
    """Micro-batches of one rank per optimizer step."""
    learning_rate: float = 5e-4
    """Highest learning rate, after the warm-up."""
    precision: TrainingPrecision = "float32"
    """Precision of the drafter's passes and gradients."""
    backend: BackendName = "auto"
    """torch, DeepSpeed's zero1, zero2 or zero3, or auto."""
    save_every: int = 200
    """Steps between checkpoints; a run that was killed goes on from the newest."""
    evaluate_every: int = 200
    """Steps between passes over the validation answers."""
    num_threads: int | None = None
    """Threads of each process; by default all cores."""
    seed: int = 0
    """Seed of prompts, split, order and initial weights."""


def verifier_config(flags: DrafterFlags) -> EngineConfig:
    """The verifier as it answers: prompt look-up changes only the time that it takes."""
    return engine_config(
        EngineFlags(
            recipe=flags.recipe,
            model=flags.model,
            dtype=flags.dtype,
            num_threads=flags.num_threads,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            max_num_seqs=ANSWERS_AT_ONCE,
            speculative_config='{"method": "prompt_lookup"}',
        )
    )


def data_config(flags: DrafterFlags) -> DataConfig:
    """Raises ``ValueError`` for a wrong value, as the other two do."""
    return DataConfig(
        num_sharegpt=flags.sharegpt,
        num_copy_diverse=flags.copy_diverse,
        num_python=flags.python,
        max_prompt_tokens=flags.max_prompt_tokens,
        max_tokens=flags.max_tokens,
        seed=flags.seed,
    )


def training_config(flags: DrafterFlags) -> TrainingConfig:
    """How the loop runs."""
    return TrainingConfig(
        epochs=flags.epochs,
        tokens_per_batch=flags.tokens_per_batch,
        gradient_accumulation=flags.gradient_accumulation,
        learning_rate=flags.learning_rate,
        dtype=flags.precision,
        seed=flags.seed,
        save_every=flags.save_every,
        evaluate_every=flags.evaluate_every,
        backend=flags.backend,
        num_threads=flags.num_threads,
    )


@contextmanager
def training_ranks() -> Iterator[DataParallel]:
    """The data-parallel ranks: those of torchrun, or this process alone."""
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if under_torchrun:
        init_from_torchrun()
    yield data_parallel_world()
    if under_torchrun:
        destroy_process_group()


def collect_data(
    engine: EngineConfig, config: DataConfig, folder: Path, ranks: DataParallel
) -> TrainingData:
    """Answers of the verifier, made by the first rank and read by all.

    Raises:
        ValueError: a verifier or data that do not fit; one sentence.
    """
    path = folder / "answers.jsonl"
    for turn in (True, False):
        if ranks.is_first is turn:
            data = _answer(engine, config, path)
        wait_for_all(ranks)
    return data


def _answer(engine_config_: EngineConfig, config: DataConfig, path: Path) -> TrainingData:
    engine = assemble_engine(engine_config_, Mesh.single())
    prompts = training_prompts(config, engine.tokenizer)
    with progress_bar() as bar:
        progress = stage_progress(bar, "answers", len(prompts))
        found = answered(engine, prompts, path, config, engine_config_.model, progress)
    return split(found, config)
