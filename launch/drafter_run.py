"""What every training of a neural drafter shares: flags, ranks, and answers before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drafters.assemble import assemble_engine
from drafters.training.answers import AnswerFile
from drafters.training.capture import generate_transcripts
from drafters.training.config import BackendName, TrainingConfig, TrainingPrecision
from drafters.training.loop import TrainingData
from engine.config import EngineConfig
from engine.tokenizer import load_tokenizer
from engine.weights import resolve_model
from launch.drafter_data import DataConfig, recorded, split, training_prompts
from launch.progress import progress_bar, stage_progress
from launch.recipes import EngineFlags, engine_config
from launch.training_ranks import TrainingRanks, check_tensor_parallel
from parallel.data_parallel import wait_for_all
from parallel.mesh import Mesh

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
    tensor_parallel_size: int = 1
    """Processes that share the verifier: 1, or all that torchrun starts."""
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
    """The verifier as it answers: prompt look-up changes only the time that it takes.

    Raises:
        ValueError: a wrong value, as the other two do.
    """
    check_tensor_parallel(flags.tensor_parallel_size)
    return engine_config(
        EngineFlags(
            recipe=flags.recipe,
            model=flags.model,
            dtype=flags.dtype,
            num_threads=flags.num_threads,
            tensor_parallel_size=flags.tensor_parallel_size,
            pipeline_parallel_size=1,
            max_num_seqs=ANSWERS_AT_ONCE,
            speculative_config='{"method": "prompt_lookup"}',
        )
    )


def data_config(flags: DrafterFlags) -> DataConfig:
    """What is answered. Raises ``ValueError`` for a wrong value."""
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


def collect_data(
    engine: EngineConfig, config: DataConfig, folder: Path, ranks: TrainingRanks
) -> TrainingData:
    """Answers of the verifier, read by all ranks.

    The first rank makes them, or all ranks together where they share the verifier.

    Raises:
        ValueError: a verifier or data that do not fit; one sentence.
    """
    prompts = training_prompts(config, load_tokenizer(resolve_model(engine.model)))
    answers = partial(
        AnswerFile,
        folder / "answers.jsonl",
        model_id=engine.model,
        max_tokens=config.max_tokens,
    )
    if ranks.verifier.world_size > 1 or ranks.is_first:
        _answer(engine, prompts, answers(), ranks.verifier, config.max_tokens)
    wait_for_all(ranks.data_parallel)
    return split(recorded(prompts, answers()), config)


def _answer(
    config: EngineConfig,
    prompts: Sequence[tuple[int, ...]],
    answers: AnswerFile,
    mesh: Mesh,
    max_tokens: int,
) -> None:
    """Make the answers that are missing, if any; collective over the mesh."""
    if all(answers.get(prompt) is not None for prompt in prompts):
        return
    engine = assemble_engine(config, mesh)
    if not engine.is_coordinator:
        engine.follow()
        return
    with progress_bar() as bar:
        progress = stage_progress(bar, "answers", len(prompts))
        generate_transcripts(engine, prompts, answers, max_tokens=max_tokens, progress=progress)
    engine.stop()
