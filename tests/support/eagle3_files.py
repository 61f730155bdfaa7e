"""A tiny random EAGLE-3 head on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from drafters.eagle3_checkpoint import save_eagle3
from drafters.eagle3_config import Eagle3Config
from drafters.eagle3_head import Eagle3Head
from drafters.vocabulary import DraftVocabulary
from engine.models.config import ModelConfig


def write_eagle3(directory: Path, verifier: ModelConfig) -> Path:
    """A head of the verifier's width over its whole vocabulary."""
    config = Eagle3Config(
        layer=replace(verifier, num_layers=1, tie_word_embeddings=False, rope_scaling=None),
        draft_vocab_size=verifier.vocab_size,
        target_hidden_size=verifier.hidden_size,
        taps=(1, 2),
    )
    head = Eagle3Head(
        config,
        DraftVocabulary.whole(verifier.vocab_size),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    head.initialise(torch.Generator().manual_seed(0))
    save_eagle3(head, directory)
    return directory
