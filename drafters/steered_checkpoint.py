"""From a directory to a steered drafter and to what the verifier computes for it.

The two are loaded apart: every verifier rank needs the projection, one process the drafter.
"""

from __future__ import annotations

from pathlib import Path

import torch

from drafters.small_model import (
    DraftSettings,
    SmallModelDrafter,
    Verifier,
    cached_model,
    load_draft_model,
)
from drafters.steered import SteeredDrafter, install_steering
from drafters.steered_conversion import PUBLIC_TENSORS, base_drafter, convert_public, is_public
from drafters.steering_files import STEERING_JSON, is_steered, load_mix, load_steering
from engine.cache_directory import default_cache_directory
from engine.features import FeatureProjection
from engine.models.config import ModelConfig
from engine.models.packed import pack_linears
from engine.weights import read_model_config, resolve_model


def load_steered(directory: Path, settings: DraftSettings, *, verifier: Verifier) -> SteeredDrafter:
    """The drafter in a directory of our layout or a published SD² checkpoint.

    Native kernels know no bias, so that whatever the settings ask for, packed ones are used; plain
    torch stays plain torch.

    Raises:
        ValueError: one sentence about the files, a tensor, a head that does not fit the drafter, or
            a vocabulary that contradicts the verifier's.
    """
    directory = steered_directory(directory)
    head = load_steering(directory)
    head.shape.check_drafter(read_model_config(directory))
    model = load_draft_model(directory, settings, verifier=verifier)
    steering = install_steering(model, head)
    if settings.kernels != "torch":
        pack_linears(model)
        pack_linears(head)
    drafter = SmallModelDrafter(cached_model(model, settings), settings.shape)
    return SteeredDrafter(drafter, steering)


def load_steered_projection(
    directory: Path, verifier: ModelConfig, *, dtype: torch.dtype
) -> FeatureProjection:
    """What the verifier, which computes in ``dtype``, must read of its rows for that drafter.

    Raises:
        ValueError: one sentence about the files, or a head that was made for another verifier.
    """
    shape, mix = load_mix(steered_directory(directory))
    shape.check_verifier(verifier)
    return mix.projection(shape.taps, dtype)


def steered_directory(directory: Path, *, cache_dir: Path | None = None) -> Path:
    """The directory itself if it is in our layout; a published checkpoint is converted, once.

    Raises:
        ValueError: it is neither, or the conversion fails.
    """
    if is_steered(directory):
        return directory
    if is_public(directory):
        base = resolve_model(base_drafter(directory))
        return convert_public(directory, base, cache_dir or default_cache_directory())
    raise ValueError(
        f"{directory} holds no steered drafter: it needs {STEERING_JSON}, or the {PUBLIC_TENSORS} "
        "and config.json of a published SD² checkpoint"
    )
