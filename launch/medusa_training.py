"""The whole training of Medusa heads: ``python -m launch.train medusa``, alone or under torchrun.

Heads learn from the same prompts and answers as an EAGLE-3 head. The static tree is chosen from
what the trained heads get right on the validation answers, and stored with them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from drafters.medusa_checkpoint import load_medusa, save_medusa
from drafters.medusa_heads import MedusaConfig, MedusaHeads
from drafters.static_tree import StaticTree, likeliest_tree
from drafters.training.batches import validation_batches
from drafters.training.config import TrainingConfig
from drafters.training.loop import TrainingData, TrainingResult, train
from drafters.training.medusa import MedusaTask, MedusaTraining, measure_heads
from drafters.vocabulary import DraftVocabulary
from engine.config import EngineConfig
from engine.weights import read_model_config, resolve_model
from engine.weights.loading import load_parameter
from launch.cli import parse, user_errors
from launch.distillation import write_summary
from launch.drafter_data import DataConfig, token_counts
from launch.drafter_run import (
    DrafterFlags,
    collect_data,
    data_config,
    training_config,
    verifier_config,
)
from launch.probe_training import output_directory
from launch.provenance import provenance
from launch.training_ranks import TrainingRanks, frozen_verifier, training_ranks

_PROG = "python -m launch.train medusa"


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaFlags(DrafterFlags):
    """Flags of ``python -m launch.train medusa``."""

    heads: int = 4
    """Medusa heads: the longest draft."""
    draft_vocab_size: int = 6_144
    """Most frequent generated tokens that the heads can propose."""
    tree_nodes: int = 63
    """Draft tokens of the static tree that is stored."""
    start: str | None = None
    """Directory of heads to go on from; by default they start as the verifier's own head."""
    learning_rate: float = 1e-3
    """Highest learning rate, after the warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaRun:
    """What is trained on what."""

    engine: EngineConfig
    """The verifier."""
    training: TrainingConfig
    data: DataConfig = field(default_factory=DataConfig)
    heads: MedusaTraining = field(default_factory=MedusaTraining)
    draft_vocab_size: int = 6_144
    """Most frequent generated tokens that the heads can propose."""
    start: str | None = None
    """Directory of heads to go on from."""

    def __post_init__(self) -> None:
        if self.draft_vocab_size < self.heads.ranks:
            raise ValueError(
                f"draft_vocab_size must be at least {self.heads.ranks}, the tokens that a tree "
                f"takes of a head, not {self.draft_vocab_size}."
            )


def train_medusa(argv: Sequence[str]) -> None:
    """Train Medusa heads and write them with their static tree."""
    flags = parse(MedusaFlags, argv, prog=_PROG, description="Train Medusa heads.")
    with user_errors(_PROG):
        run = MedusaRun(
            engine=verifier_config(flags),
            training=training_config(flags),
            data=data_config(flags),
            heads=MedusaTraining(num_heads=flags.heads, tree_nodes=flags.tree_nodes),
            draft_vocab_size=flags.draft_vocab_size,
            start=flags.start,
        )
        load_start(run)
        folder = output_directory(flags.out)
    origin = provenance(run)
    with (
        training_ranks(flags.tensor_parallel_size) as ranks,
        user_errors(_PROG, speaks=ranks.is_first),
    ):
        data = collect_data(run.engine, run.data, folder, ranks)
        trained = train_heads(run, data, folder, ranks)
        if ranks.is_first:
            trained.write(data, origin, folder)
            said = trained.result.validation | trained.quality
            sys.stdout.write(f"{json.dumps(said)}\n")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedHeads:
    """What a finished training leaves."""

    heads: MedusaHeads
    tree: StaticTree
    result: TrainingResult
    quality: dict[str, Any]
    """Measured on the validation answers."""

    def write(self, data: TrainingData, origin: dict[str, Any], folder: Path) -> None:
        """Heads in bfloat16, static tree and provenance."""
        save_medusa(self.heads.to(torch.bfloat16), self.tree, folder)
        write_summary(self.result, data, {**origin, "quality": self.quality}, folder)


def train_heads(
    run: MedusaRun, data: TrainingData, folder: Path, ranks: TrainingRanks
) -> TrainedHeads:
    """Train, or go on where a killed run was, and measure; collective over the ranks.

    Raises:
        ValueError: data, sizes or a checkpoint that do not fit; one sentence.
    """
    heads = new_heads(run, data)
    task = MedusaTask(heads, frozen_verifier(run.engine, ranks), run.heads)
    result = train(task, data, run.training, folder, ranks.data_parallel)
    heads.load_state_dict(result.weights, strict=False)
    shared = validation_batches(data.validation, run.training.tokens_per_batch, ranks.data_parallel)
    # Each rank measures its own share of the validation answers; the first one's tree is kept.
    measured = measure_heads(task, [batch for batch, counts in shared], run.heads.ranks)
    tree = likeliest_tree(measured.shares, run.heads.tree_nodes)
    quality = {
        "tree_acceptance": measured.accepted_length(tree),
        "expected_tree_acceptance": tree.expected_length,
        "draft_vocabulary_coverage": _coverage(heads.vocabulary, data),
    }
    return TrainedHeads(heads=heads, tree=tree, result=result, quality=quality)


def new_heads(run: MedusaRun, data: TrainingData) -> MedusaHeads:
    """Heads over the verifier's own vocabulary projection, as the verifier's head or as trained."""
    start = load_start(run)
    if start is not None:
        return start
    directory = resolve_model(run.engine.model)
    verifier = read_model_config(directory)
    size = min(run.draft_vocab_size, verifier.vocab_size)
    heads = MedusaHeads(
        MedusaConfig(
            num_heads=run.heads.num_heads,
            hidden_size=verifier.hidden_size,
            vocab_size=verifier.vocab_size,
            draft_vocab_size=size,
        ),
        DraftVocabulary.most_frequent(token_counts(data.training, verifier.vocab_size), size),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    heads.set_projection(0, load_parameter(directory, "head.weight", dtype=torch.float32))
    return heads


def load_start(run: MedusaRun) -> MedusaHeads | None:
    """The heads to go on from, or None; called early too, to refuse wrong ones before any work.

    Raises:
        ValueError: they are no heads, or not as many as are to be trained; one sentence.
    """
    if run.start is None:
        return None
    verifier = resolve_model(run.engine.model)
    start = load_medusa(Path(run.start), verifier, dtype=torch.float32)
    expected = replace(start.config, num_heads=run.heads.num_heads)
    if start.config != expected:
        raise ValueError(
            f"--start {run.start} holds {start.config.num_heads} heads, and "
            f"{run.heads.num_heads} are to be trained."
        )
    return start


def _coverage(vocabulary: DraftVocabulary, data: TrainingData) -> float:
    """Share of the validation answers' tokens that can be drafted."""
    tokens = torch.tensor([token for entry in data.validation for token in entry.output_ids])
    return float(vocabulary.membership[tokens].float().mean())
