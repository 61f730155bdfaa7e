"""Steered drafters on disk: our layout, and what SD² publishes.

Ours is a directory with the drafter as an ordinary Hugging Face checkpoint (any tool can load it,
unsteered), ``steering.safetensors`` with the head's tensors, and ``steering.json`` with its variant
and sizes. SD²'s (ETH-DISCO/SD-square, upload_to_hf.py and main.py) is ``pytorch_model.bin`` with
drafter and head together and ``config.json`` with the training's settings instead of the drafter's;
it is converted into ours.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from drafters.steering import HEADS, StateMix, SteeringHead, SteeringShape
from engine.models.decoder import Decoder
from engine.weights.checkpoint import INDEX_NAME, SINGLE_NAME
from engine.weights.model_config import read_json
from engine.weights.names import pieces_of, split_pieces

FORMAT = "switchsteer-steering-1"
"""Value of the key ``format`` in ``steering.json`` and of the tensors' metadata."""

STEERING_JSON = "steering.json"
STEERING_TENSORS = "steering.safetensors"

_MIX_PREFIX = "mix."


def is_steered(directory: Path) -> bool:
    """Whether a directory is in our layout."""
    return (directory / STEERING_JSON).is_file()


def save_steering(head: SteeringHead, directory: Path) -> None:
    """Write the head beside a drafter's checkpoint; the directory must exist."""
    description = {"format": FORMAT, "variant": head.variant, **asdict(head.shape)}
    (directory / STEERING_JSON).write_text(json.dumps(description, indent=2) + "\n")
    tensors = {name: tensor.contiguous() for name, tensor in head.state_dict().items()}
    save_file(tensors, directory / STEERING_TENSORS, metadata={"format": FORMAT})


def load_steering(directory: Path) -> SteeringHead:
    """The head in a directory of our layout, in the dtype it is stored in.

    Raises:
        ValueError: a file is missing or no steering head; a tensor is missing, misshapen or has no
            place; one sentence.
    """
    shape, variant = _read_description(directory / STEERING_JSON)
    file = directory / STEERING_TENSORS
    return head_from_tensors(_read_tensors(file), shape, variant, source=file)


def load_mix(directory: Path) -> tuple[SteeringShape, StateMix]:
    """The part of a head that runs on the verifier's side; the rest is not read.

    Raises:
        ValueError: as ``load_steering``.
    """
    shape, _ = _read_description(directory / STEERING_JSON)
    file = directory / STEERING_TENSORS
    tensors = _read_tensors(file, prefix=_MIX_PREFIX)
    mix = StateMix(shape.verifier_hidden_size, dtype=_dtype_of(tensors))
    names = {name: _MIX_PREFIX + name for name in mix.state_dict()}
    parts = {name.removeprefix(_MIX_PREFIX): tensor for name, tensor in tensors.items()}
    _fill(mix, parts, source=file, source_names=names)
    return shape, mix


def head_from_tensors(
    tensors: Mapping[str, Tensor],
    shape: SteeringShape,
    variant: str,
    *,
    source: Path,
    source_names: Mapping[str, str] | None = None,
) -> SteeringHead:
    """A head with these parameters, named as ours.

    Raises:
        ValueError: names ``source``, the tensor (as the source calls it, where ``source_names``
            says so) and the shape it must have.
    """
    head = HEADS[variant](shape, dtype=_dtype_of(tensors))
    superfluous = sorted(tensors.keys() - head.state_dict().keys())
    if superfluous:
        raise ValueError(f"{source}: tensor {superfluous[0]} has no place in a {variant} head")
    _fill(head, tensors, source=source, source_names=source_names or {})
    return head


def save_drafter(model: Decoder, directory: Path, *, like: Path) -> None:
    """Write a decoder as a Hugging Face checkpoint; its layers may be steerable, but not packed.

    Configuration and tokenizer files are copied from ``like``, the directory it was loaded from.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors |= split_pieces(parameter, pieces_of(name, model.config))
    copy_model_files(like, directory)
    save_file(tensors, directory / SINGLE_NAME, metadata={"format": "pt"})


def copy_model_files(source: Path, directory: Path) -> None:
    """Copy what a model directory holds beside weights: configuration, tokenizer, chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if file.suffix in (".json", ".jinja") and file.name not in (INDEX_NAME, STEERING_JSON):
            shutil.copyfile(file, directory / file.name)


def _fill(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    source: Path,
    source_names: Mapping[str, str],
) -> None:
    """Copy tensors into the parameters of the same names; all must be there and fit."""
    for name, parameter in module.state_dict().items():
        label, shape = source_names.get(name, name), list(parameter.shape)
        if name not in tensors:
            raise ValueError(f"{source}: tensor {label} of shape {shape} is missing")
        if list(tensors[name].shape) != shape:
            raise ValueError(
                f"{source}: tensor {label} has shape {list(tensors[name].shape)}, but the steering "
                f"head needs {shape}"
            )
    module.load_state_dict(dict(tensors))


def _dtype_of(tensors: Mapping[str, Tensor]) -> torch.dtype:
    return next((tensor.dtype for tensor in tensors.values()), torch.float32)


def _read_description(file: Path) -> tuple[SteeringShape, str]:
    content = read_json(file)
    if content.get("format") != FORMAT or content.get("variant") not in HEADS:
        raise ValueError(
            f"{file} describes no steering head: it needs format {FORMAT} and a variant, one of "
            f"{', '.join(HEADS)}"
        )
    return _shape_of(file, content), content["variant"]


def _shape_of(file: Path, content: Mapping[str, Any]) -> SteeringShape:
    values: dict[str, Any] = {}
    for name in (item.name for item in fields(SteeringShape)):
        value = content.get(name)
        if name in ("taps", "layers"):
            values[name] = _integers(file, name, value)
        elif type(value) is int and value > 0:
            values[name] = value
        else:
            raise ValueError(f"{file}: {name} must be a positive integer, not {value!r}")
    if len(values["taps"]) != 3:
        raise ValueError(f"{file}: taps must be three integers, not {content['taps']!r}")
    try:
        return SteeringShape(**values)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _integers(file: Path, name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise ValueError(f"{file}: {name} must be a list of integers, not {value!r}")
    return tuple(value)


def _read_tensors(file: Path, *, prefix: str = "") -> dict[str, Tensor]:
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118
            tensors = {name: opened.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is not a whole safetensors file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{file} holds no steering head: its metadata must say format={FORMAT}, not "
            f"{metadata.get('format')!r}"
        )
    return tensors
