"""A public SD² checkpoint to a directory in our layout, once.

Facts from ETH-DISCO/SD-square (upload_to_hf.py, main.py, src/models): ``pytorch_model.bin`` holds
the drafter below ``d_base.``, its steered layers wrapped (``d_base.model.layers.i.l.…``), and the
head's maps; ``config.json`` holds the training's settings: ``drafter`` (a name), ``guide_method``
(the variant), ``v_layer`` (taps, ascending: the state *before* layer i, which is Hugging Face's
``hidden_states[i]``) and ``d_layer`` (steered layers). The drafter's own configuration and
tokenizer are not in it: they come from the model it was trained from.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
from filelock import FileLock
from safetensors.torch import save_file
from torch import Tensor

from drafters.steering import HEADS, SteeringShape
from drafters.steering_files import copy_model_files, head_from_tensors, save_steering
from engine.models.config import ModelConfig
from engine.weights import read_model_config
from engine.weights.checkpoint import SINGLE_NAME
from engine.weights.model_config import read_json

PUBLIC_TENSORS = "pytorch_model.bin"

_VERSION = 1
"""Raise it when the output changes: old conversions are then made anew."""

_WRAPPED = re.compile(r"(model\.layers\.\d+)\.l\.(.+)")

_SHARED_NAMES = {
    "mix.weight": "guidance_embd_layer.orig.weight",
    "mix.bias": "guidance_embd_layer.orig.bias",
}
_SCALE_NAMES = {
    "norm.weight": "latent_mod_prep.norm.weight",
    "norm.bias": "latent_mod_prep.norm.bias",
    "scale.weight": "latent_mod_prep.w_guide.weight",
}


def is_public(directory: Path) -> bool:
    """Whether a directory looks like a published SD² checkpoint."""
    file = directory / "config.json"
    has_tensors = (directory / PUBLIC_TENSORS).is_file()
    return has_tensors and file.is_file() and "guide_method" in read_json(file)


def base_drafter(directory: Path) -> str:
    """The name of the model that a public checkpoint's drafter was trained from.

    Raises:
        ValueError: the settings do not say.
    """
    file = directory / "config.json"
    name = read_json(file).get("drafter")
    if not isinstance(name, str):
        raise ValueError(f"{file}: drafter must be a model's name, not {name!r}")
    return name


def convert_public(directory: Path, base: Path, cache_dir: Path) -> Path:
    """The converted directory, made on first use; ``base`` is the drafter before its training.

    Raises:
        ValueError: a setting or a tensor that is missing or does not fit, or nowhere to write.
    """
    target = cache_dir / "steered" / f"{directory.name}-{_fingerprint(directory, base)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / f"{target.name}.lock"):
            if not target.is_dir():
                _convert_atomically(directory, base, target)
    except OSError as error:
        raise ValueError(
            f"{directory} cannot be converted into {target.parent}: {error.strerror}: set "
            "XDG_CACHE_HOME to a folder with room for the drafter"
        ) from error
    return target


def _convert_atomically(directory: Path, base: Path, target: Path) -> None:
    """Write beside the target and rename, so that a directory of that name is always whole."""
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        _convert(directory, base, partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _convert(directory: Path, base: Path, target: Path) -> None:
    config, file = read_model_config(base), directory / PUBLIC_TENSORS
    public = _read_public(file)
    variant, taps, layers = _read_settings(directory / "config.json", config)
    names = _head_names(variant, layers)
    shape = SteeringShape(
        verifier_hidden_size=_verifier_hidden_size(file, public),
        taps=taps,
        drafter_hidden_size=config.hidden_size,
        drafter_intermediate_size=config.intermediate_size,
        layers=layers,
    )
    tensors = {ours: public[theirs] for ours, theirs in names.items() if theirs in public}
    head = head_from_tensors(tensors, shape, variant, source=file, source_names=names)
    copy_model_files(base, target)
    drafter = _drafter_tensors(file, public, config, set(names.values()))
    save_file(drafter, target / SINGLE_NAME, metadata={"format": "pt"})
    save_steering(head, target)


def _read_public(file: Path) -> Mapping[str, Tensor]:
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{file} is not a file of tensors: {reason}") from error
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise ValueError(f"{file} must hold names and tensors and nothing else")
    return tensors


def _read_settings(
    file: Path, drafter: ModelConfig
) -> tuple[str, tuple[int, int, int], tuple[int, ...]]:
    """(variant, taps, steered layers)."""
    settings = read_json(file)
    variant, taps, layers = (settings.get(n) for n in ("guide_method", "v_layer", "d_layer"))
    if variant not in HEADS:
        raise ValueError(
            f"{file}: guide_method={variant!r} is not supported: allowed are {', '.join(HEADS)}"
        )
    if not _is_integers(taps) or len(taps) != 3 or not 0 < taps[0] < taps[1] < taps[2]:
        raise ValueError(f"{file}: v_layer must be three ascending layers, not {taps!r}")
    if layers == "all":
        layers = list(range(drafter.num_layers))
    layers = [layers] if isinstance(layers, int) else layers
    if not _is_integers(layers) or not all(0 <= layer < drafter.num_layers for layer in layers):
        raise ValueError(
            f"{file}: d_layer must be 'all' or drafter layers from 0 to {drafter.num_layers - 1}, "
            f"not {settings['d_layer']!r}"
        )
    return variant, (taps[0], taps[1], taps[2]), tuple(layers)


def _is_integers(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _head_names(variant: str, layers: tuple[int, ...]) -> dict[str, str]:
    """Our name of every tensor of the head to the public one."""
    if variant != "advanced":
        return _SHARED_NAMES | _SCALE_NAMES
    networks = {}
    for row, layer in enumerate(layers):
        public = f"d_base.model.layers.{layer}.bias_proj"
        networks[f"networks.{row}.input.weight"] = f"{public}.0.weight"
        networks[f"networks.{row}.output.weight"] = f"{public}.2.weight"
    return _SHARED_NAMES | networks


def _verifier_hidden_size(file: Path, public: Mapping[str, Tensor]) -> int:
    bias = public.get(_SHARED_NAMES["mix.bias"])
    if bias is None or bias.ndim != 1:
        raise ValueError(f"{file}: vector {_SHARED_NAMES['mix.bias']} is missing")
    return bias.numel()


def _drafter_tensors(
    file: Path, public: Mapping[str, Tensor], config: ModelConfig, of_head: set[str]
) -> dict[str, Tensor]:
    """The drafter under Hugging Face's names; the stored copy of a tied head is left out."""
    tensors = {}
    for name in public.keys() - of_head:
        if not name.startswith("d_base."):
            raise ValueError(f"{file}: tensor {name} belongs to neither the drafter nor its head")
        plain = _WRAPPED.sub(r"\1.\2", name.removeprefix("d_base."))
        if not (plain == "lm_head.weight" and config.tie_word_embeddings):
            tensors[plain] = public[name].contiguous()
    return tensors


def _fingerprint(directory: Path, base: Path) -> str:
    status = (directory / PUBLIC_TENSORS).stat()
    facts = (_VERSION, str(directory.resolve()), str(base.resolve()), status.st_size)
    return hashlib.sha256(repr((*facts, status.st_mtime_ns)).encode()).hexdigest()[:12]
