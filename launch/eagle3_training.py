"""The whole training of an EAGLE-3 head: prompts, answers, vocabulary, training, files.

``python -m launch.train eagle3`` runs it, alone or under torchrun. HumanEval is not trained on and
not looked at here: ``launch.bench`` measures the result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from drafters.eagle3_checkpoint import load_eagle3, save_eagle3
from drafters.eagle3_config import Eagle3Config, default_taps
from drafters.eagle3_head import Eagle3Head
from drafters.training.batches import derived_generator
from drafters.training.config import TrainingConfig
from drafters.training.eagle3 import Eagle3Task, Eagle3Training, initialise_from_verifier
from drafters.training.loop import TrainingData, TrainingResult, train
from drafters.vocabulary import DraftVocabulary
from engine.config import EngineConfig
from engine.models.config import ModelConfig
from engine.weights import load_layers, read_model_config, resolve_model
from launch.drafter_data import DataConfig, token_counts
from launch.training_ranks import TrainingRanks, frozen_verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Run:
    """What is trained on what."""

    engine: EngineConfig
    """The verifier."""
    training: TrainingConfig
    data: DataConfig = field(default_factory=DataConfig)
    head: Eagle3Training = field(default_factory=Eagle3Training)
    draft_vocab_size: int = 6_144
    """Most frequent generated tokens that the head can propose."""
    start: str | None = None
    """Directory of a head to go on from; by default a fresh one starts from the verifier."""

    def __post_init__(self) -> None:
        if self.draft_vocab_size < 1:
            raise ValueError(f"draft_vocab_size must be at least 1, not {self.draft_vocab_size}.")


def train_head(
    run: Eagle3Run, data: TrainingData, folder: Path, ranks: TrainingRanks
) -> tuple[Eagle3Head, TrainingResult]:
    """Train a fresh head, or go on where a killed run was; collective over the ranks.

    Raises:
        ValueError: data, sizes or a checkpoint that do not fit; one sentence.
    """
    head = new_head(run, data)
    task = Eagle3Task(head, frozen_verifier(run.engine, ranks), run.head)
    result = train(task, data, run.training, folder, ranks.data_parallel)
    head.load_state_dict(result.weights, strict=False)
    return head, result


def new_head(run: Eagle3Run, data: TrainingData) -> Eagle3Head:
    """A head of the verifier's own width that starts from its last layer."""
    verifier = read_model_config(resolve_model(run.engine.model))
    size = min(run.draft_vocab_size, verifier.vocab_size)
    counts = token_counts(data.training, verifier.vocab_size)
    head = Eagle3Head(
        _config(verifier, size),
        DraftVocabulary.most_frequent(counts, size),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    generator = derived_generator(run.training.seed, "initial weights")
    last = load_layers(
        run.engine.model,
        (verifier.num_layers - 1,),
        dtype=torch.float32,
        max_model_len=run.engine.max_model_len,
    )
    initialise_from_verifier(head, last, 0, generator)
    start = load_start(run)
    if start is not None:
        head.adopt(start)
    return head


def load_start(run: Eagle3Run) -> Eagle3Head | None:
    """The head to go on from, or None; called early too, to refuse a wrong one before any work.

    Raises:
        ValueError: it is no head, or none of the verifier's shape; one sentence.
    """
    if run.start is None:
        return None
    verifier = resolve_model(run.engine.model)
    start = load_eagle3(Path(run.start), verifier, dtype=torch.float32)
    expected = _config(read_model_config(verifier), start.vocabulary.size)
    if start.config != expected:
        raise ValueError(
            f"--start {run.start} holds a head of another shape than the one to be trained, "
            "which has the verifier's width and reads its default taps."
        )
    return start


def _config(verifier: ModelConfig, draft_vocab_size: int) -> Eagle3Config:
    return Eagle3Config(
        layer=replace(verifier, num_layers=1, tie_word_embeddings=False, eos_token_ids=()),
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=verifier.hidden_size,
        taps=default_taps(verifier.num_layers),
    )


def write_head(
    head: Eagle3Head,
    result: TrainingResult,
    data: TrainingData,
    origin: dict[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """Write the head in bfloat16 with its provenance; returns the summary."""
    save_eagle3(head.to(torch.bfloat16), folder)
    covered = head.vocabulary.membership[
        torch.tensor([token for entry in data.validation for token in entry.output_ids])
    ]
    summary = {
        "validation": result.validation,
        "steps": result.steps,
        "backend": result.backend,
        "data": {
            "training_transcripts": len(data.training),
            "training_tokens": sum(len(entry.output_ids) for entry in data.training),
            "validation_transcripts": len(data.validation),
            "validation_tokens": len(covered),
        },
        "draft_vocabulary_coverage": float(covered.float().mean()),
    }
    text = json.dumps({**origin, **summary}, indent=1, default=str)
    (folder / "provenance.json").write_text(text + "\n")
    return summary
