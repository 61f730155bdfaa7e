"""From a configuration to its neural drafter, and to what that drafter reads from the verifier.

The two halves are loaded apart: every verifier rank needs the projection, only the drafter's
process (the coordinator's own, or an actor's) needs the rest.
"""

from __future__ import annotations

from pathlib import Path

import torch

from drafters.draft_tree import ChainShape, TreeShape
from drafters.eagle3 import Eagle3Drafter
from drafters.eagle3_checkpoint import PICKLE_NAME, load_eagle3, load_eagle3_projection
from drafters.eagle3_native import NativeEagle3, can_nativize
from drafters.medusa import MedusaDrafter
from drafters.medusa_checkpoint import (
    PUBLISHED_NAMES,
    check_medusa,
    load_medusa,
    load_medusa_projection,
    load_tree,
)
from drafters.pretrained import shipped_drafter
from drafters.shared_embedding import with_embedding
from drafters.small_model import DraftSettings, Verifier, load_small_model
from drafters.steered_checkpoint import load_steered, load_steered_projection
from drafters.vocabulary_check import check_vocabulary
from engine.config import EngineConfig
from engine.features import Projection
from engine.interfaces import NeuralDrafter
from engine.weights import read_model_config, resolve_model
from engine.weights.resolve import HUB_FILES

_HUB_FILES = (*HUB_FILES, PICKLE_NAME, *PUBLISHED_NAMES)
"""SafeAILab's, SD²'s and Medusa's checkpoints are pickles."""

MAX_DRAFT_TOKENS = 64
"""Longest draft of any configuration; each step asks for less."""


def load_projection(config: EngineConfig) -> Projection | None:
    """What the configured drafter reads of every verifier row; None when it reads nothing.

    Raises:
        ValueError: weights that are missing or do not fit; one sentence.
    """
    dtype = getattr(torch, config.dtype)
    verifier = read_model_config(resolve_model(config.model))
    match config.speculation.drafter:
        case "eagle3":
            return load_eagle3_projection(_directory(config), verifier, dtype=dtype)
        case "steered":
            return load_steered_projection(_directory(config), verifier, dtype=dtype)
        case "medusa":
            return load_medusa_projection(resolve_model(config.model), dtype=dtype)
    return None


def check_drafter(config: EngineConfig) -> None:
    """Refuse early, before any process is started, a drafter that is missing or does not fit.

    Raises:
        ValueError: as ``load_drafter``, but for weights that are damaged inside.
    """
    load_projection(config)
    if config.speculation.drafter == "medusa":
        check_medusa(_directory(config), resolve_model(config.model))
    if config.speculation.drafter in ("small_model", "steered"):
        verifier = resolve_model(config.model)
        check_vocabulary(with_embedding(_directory(config), verifier), verifier)


def load_drafter(config: EngineConfig) -> NeuralDrafter:
    """The configured drafter, ready to draft on this process's threads.

    Raises:
        ValueError: weights that are missing or do not fit; one sentence.
    """
    verifier = resolve_model(config.model)
    match config.speculation.drafter:
        case "eagle3":
            head = load_eagle3(_directory(config), verifier, dtype=getattr(torch, config.dtype))
            chain = NativeEagle3(head) if can_nativize(head) else None
            head.prepare_for_inference()
            return Eagle3Drafter(head, _shape(config), chain)
        case "small_model":
            source = str(with_embedding(_directory(config), verifier))
            return load_small_model(source, _settings(config), verifier=_verifier(verifier))
        case "steered":
            directory = with_embedding(_directory(config), verifier)
            return load_steered(directory, _settings(config), verifier=_verifier(verifier))
        case "medusa":
            return _load_medusa(config, verifier)
    raise ValueError("drafter 'none' drafts nothing")


def _load_medusa(config: EngineConfig, verifier: Path) -> MedusaDrafter:
    """The shape of the tree is stored; configured is how much of it is drafted."""
    directory = _directory(config)
    heads = load_medusa(directory, verifier, dtype=getattr(torch, config.dtype))
    heads.prepare_for_inference()
    tree = load_tree(directory, num_heads=heads.config.num_heads)
    return MedusaDrafter(heads, tree.limited(config.speculation.draft_tree_nodes - 1))


def _shape(config: EngineConfig) -> ChainShape | TreeShape:
    speculation = config.speculation
    if speculation.draft_tree_top_k == 1:
        return ChainShape(
            num_tokens=MAX_DRAFT_TOKENS, min_probability=speculation.draft_min_probability
        )
    return TreeShape(
        total_nodes=speculation.draft_tree_nodes,
        depth=speculation.num_speculative_tokens,
        top_k=speculation.draft_tree_top_k,
    )


def _settings(config: EngineConfig) -> DraftSettings:
    return DraftSettings(
        shape=_shape(config),
        num_slots=config.max_num_seqs,
        max_model_len=config.max_model_len,
        dtype=getattr(torch, config.dtype),
        kernels=config.kernels,
    )


def _verifier(directory: Path) -> Verifier:
    return Verifier(directory=directory, vocab_size=read_model_config(directory).vocab_size)


def _directory(config: EngineConfig) -> Path:
    return resolve_model(_source(config), hub_files=_HUB_FILES)


def _source(config: EngineConfig) -> str:
    """What the user names, else what ships for the verifier."""
    speculation = config.speculation
    if speculation.model is not None:
        return speculation.model
    shipped = shipped_drafter(config.model, speculation.drafter)
    if shipped is None:
        raise ValueError(
            f"drafter {speculation.drafter!r} needs weights and none are shipped for "
            f"{config.model}: give a directory or hub id as speculative-config key 'model', or "
            "choose another drafter, such as 'none' beside copying"
        )
    return str(shipped)
