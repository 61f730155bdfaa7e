"""EAGLE-3 heads on disk: read from all public layouts, written in SpecForge's.

Names are SafeAILab's and SpecForge's (``midlayer.*``); speculators' ``layers.0.*`` are the same
tensors. Whatever is wrong is one sentence that names the file, the tensor and what was expected.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from drafters.eagle3_config import Eagle3Config, read_eagle3_config, write_eagle3_config
from drafters.eagle3_head import Eagle3Head, FeatureFusion
from drafters.vocabulary import DraftVocabulary
from engine.features import FeatureProjection
from engine.models.config import ModelConfig
from engine.weights.checkpoint import INDEX_NAME, SINGLE_NAME, Checkpoint
from engine.weights.model_config import read_json, read_model_config
from engine.weights.names import Piece, pieces_of, split_pieces
from parallel.plan import Shard, ShardStyle

PICKLE_NAME = "pytorch_model.bin"

_CPU = torch.device("cpu")
_EMBEDDING = "embed_tokens.weight"
_LAYER = "layers.0."
"""What speculators call ``midlayer.``"""
_D2T, _T2D = "d2t", "t2d"


def load_eagle3(directory: Path, verifier: Path, *, dtype: torch.dtype) -> Eagle3Head:
    """The head in ``directory`` for the model in ``verifier``, on the CPU, frozen.

    A head without an embedding gets the verifier's.

    Raises:
        ValueError: one sentence about the configuration, a file or a tensor.
    """
    target = read_model_config(verifier)
    config, tensors = _open(directory, target)
    vocabulary = _read_vocabulary(tensors, config)
    head = Eagle3Head(config, vocabulary, dtype=dtype, device=torch.device("meta"))
    for name, pieces in _pieces(config).items():
        if name == "embed.weight" and not config.has_embedding:
            value = _verifier_embedding(verifier, target, config, dtype)
        else:
            value = torch.cat([tensors.read(piece).to(dtype) for piece in pieces])
        _set(head, name, value)
    return head.eval()


def load_eagle3_projection(
    directory: Path, verifier: ModelConfig, *, dtype: torch.dtype
) -> FeatureProjection:
    """Only what the verifier's pass needs of a head: for ranks that do not draft.

    Raises:
        ValueError: as ``load_eagle3``.
    """
    config, tensors = _open(directory, verifier)
    fusion = FeatureFusion(config, dtype=dtype, device=torch.device("meta"))
    for name, pieces in _pieces(config).items():
        if name.startswith("fc."):
            (piece,) = pieces
            _set(fusion, name.removeprefix("fc."), tensors.read(piece).to(dtype))
    return fusion.projection(dtype)


def save_eagle3(head: Eagle3Head, directory: Path) -> None:
    """Write ``config.json`` and ``model.safetensors``; the verifier's embedding is left out.

    Not for a head that was prepared for inference: its matrices are packed.
    """
    config = head.config
    tensors: dict[str, Tensor] = {}
    for name, pieces in _pieces(config).items():
        if name == "embed.weight" and not config.has_embedding:
            continue
        tensors |= split_pieces(head.get_parameter(name), pieces)
    tensors[_D2T], tensors[_T2D] = head.vocabulary.offsets, head.vocabulary.membership
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / SINGLE_NAME, metadata={"format": "pt"})
    text = json.dumps(write_eagle3_config(config), indent=2) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")


def _open(directory: Path, verifier: ModelConfig) -> tuple[Eagle3Config, _Tensors]:
    config = read_eagle3_config(directory, verifier)
    tensors = _Tensors(directory)
    config = replace(config, has_embedding=_EMBEDDING in tensors.stored)
    if not config.has_embedding and config.layer.hidden_size != verifier.hidden_size:
        raise ValueError(
            f"{directory}: tensor {_EMBEDDING} of shape "
            f"{[config.layer.vocab_size, config.layer.hidden_size]} is missing: the verifier's "
            f"embedding is {verifier.hidden_size} wide and cannot take its place"
        )
    tensors.check(config)
    return config, tensors


def _pieces(config: Eagle3Config) -> dict[str, tuple[Piece, ...]]:
    """The stored tensors that make up each of the head's parameters, one under the other."""
    layer, width = config.layer, 2 * config.layer.hidden_size
    hidden, inner, query, kv = (
        layer.hidden_size,
        layer.intermediate_size,
        layer.query_size,
        layer.kv_size,
    )
    target = config.target_hidden_size
    norms = range(len(config.taps) if config.fc_norm else 0)
    attention, mlp = "midlayer.self_attn", "midlayer.mlp"
    return {
        "fc.weight": (Piece("fc.weight", (hidden, len(config.taps) * target)),),
        **{f"fc.norms.{i}.weight": (Piece(f"fc_norm.{i}.weight", (target,)),) for i in norms},
        "embed.weight": (Piece(_EMBEDDING, (layer.vocab_size, hidden)),),
        "midlayer.input_norm.weight": (Piece("midlayer.input_layernorm.weight", (hidden,)),),
        "midlayer.hidden_norm.weight": (Piece("midlayer.hidden_norm.weight", (hidden,)),),
        "midlayer.qkv.weight": (
            Piece(f"{attention}.q_proj.weight", (query, width)),
            Piece(f"{attention}.k_proj.weight", (kv, width)),
            Piece(f"{attention}.v_proj.weight", (kv, width)),
        ),
        "midlayer.o.weight": (Piece(f"{attention}.o_proj.weight", (hidden, query)),),
        "midlayer.mlp.norm.weight": (Piece("midlayer.post_attention_layernorm.weight", (hidden,)),),
        "midlayer.mlp.gate_up.weight": (
            Piece(f"{mlp}.gate_proj.weight", (inner, hidden)),
            Piece(f"{mlp}.up_proj.weight", (inner, hidden)),
        ),
        "midlayer.mlp.down.weight": (Piece(f"{mlp}.down_proj.weight", (hidden, inner)),),
        "norm.weight": (Piece("norm.weight", (hidden,)),),
        "lm_head.weight": (Piece("lm_head.weight", (config.draft_vocab_size, hidden)),),
    }


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor that can be read, and the file it is in."""

    file: Path
    read: Callable[[], Tensor]


class _Tensors:
    """The tensors of a head's directory by their canonical names."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.stored: dict[str, _Stored] = {}
        for file in _files(directory):
            read_file = _open_pickle if file.suffix == ".bin" else _open_safetensors
            for name, read in read_file(file):
                self.stored[_canonical(name)] = _Stored(file, read)

    def check(self, config: Eagle3Config) -> None:
        """Refuse tensors that the head has no place for."""
        known = {piece.name for pieces in _pieces(config).values() for piece in pieces}
        for name, stored in self.stored.items():
            if name not in known | {_D2T, _T2D} and not name.endswith("rotary_emb.inv_freq"):
                raise ValueError(
                    f"{stored.file}: tensor {name} has no place in an EAGLE-3 head as config.json "
                    "describes it"
                )

    def read(self, piece: Piece, *, integer: bool = False) -> Tensor:
        """The tensor, with the shape and kind it must have."""
        stored = self.stored.get(piece.name)
        if stored is None:
            raise ValueError(
                f"{self._directory}: tensor {piece.name} of shape {list(piece.shape)} is missing"
            )
        tensor = stored.read()
        if tuple(tensor.shape) != piece.shape:
            raise ValueError(
                f"{stored.file}: tensor {piece.name} has shape {list(tensor.shape)}, but "
                f"config.json asks for {list(piece.shape)}"
            )
        if tensor.is_floating_point() == integer:
            raise ValueError(
                f"{stored.file}: tensor {piece.name} is stored as {tensor.dtype}: allowed are "
                f"{'integers and booleans' if integer else 'unquantised floating-point numbers'}"
            )
        return tensor


def _canonical(name: str) -> str:
    return "midlayer." + name.removeprefix(_LAYER) if name.startswith(_LAYER) else name


def _files(directory: Path) -> list[Path]:
    index = directory / INDEX_NAME
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{index} is not a JSON object with a weight_map")
        files = [directory / str(name) for name in sorted(set(weight_map.values()))]
        for file in files:
            if not file.is_file():
                raise ValueError(f"{index} places tensors in {file.name}, which is missing")
        return files
    for name in (SINGLE_NAME, PICKLE_NAME):
        if (directory / name).is_file():
            return [directory / name]
    raise ValueError(f"{directory} holds none of {SINGLE_NAME}, {INDEX_NAME} and {PICKLE_NAME}")


def _open_safetensors(file: Path) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    try:
        handle: Any = safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is not a whole safetensors file: {error}") from error
    for name in handle.keys():  # noqa: SIM118 - the handle is no mapping
        yield name, partial(handle.get_tensor, name)


def _open_pickle(file: Path) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Only tensors are unpickled: a file that would run code is refused."""
    try:
        tensors = torch.load(file, map_location=_CPU, weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{file} is not a whole file of tensors: {reason}") from error
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise ValueError(f"{file} must hold tensors by name and nothing else")
    for name in tensors:
        yield name, partial(tensors.__getitem__, name)


def _read_vocabulary(tensors: _Tensors, config: Eagle3Config) -> DraftVocabulary:
    size, vocab_size = config.draft_vocab_size, config.layer.vocab_size
    if size == vocab_size and _D2T not in tensors.stored:
        return DraftVocabulary.whole(vocab_size)
    d2t = tensors.read(Piece(_D2T, (size,)), integer=True)
    file = tensors.stored[_D2T].file
    try:
        vocabulary = DraftVocabulary.from_offsets(d2t, vocab_size)
    except ValueError as error:
        raise ValueError(f"{file}: tensor {_D2T}: {error}") from error
    if _T2D in tensors.stored:
        t2d = tensors.read(Piece(_T2D, (vocab_size,)), integer=True)
        if not torch.equal(t2d.bool(), vocabulary.membership):
            raise ValueError(f"{file}: tensor {_T2D} names other tokens than tensor {_D2T}")
    return vocabulary


def _verifier_embedding(
    directory: Path, verifier: ModelConfig, config: Eagle3Config, dtype: torch.dtype
) -> Tensor:
    assert config.layer.hidden_size == verifier.hidden_size
    checkpoint, pieces = Checkpoint(directory), pieces_of("embed.weight", verifier)
    for piece in pieces:
        checkpoint.check_piece(piece)
    return checkpoint.read(pieces, Shard(style=ShardStyle.REPLICATE), dtype=dtype)


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    """Put a loaded tensor in the place of a meta parameter."""
    owner, _, leaf = name.rpartition(".")
    assert value.shape == module.get_parameter(name).shape, name
    setattr(module.get_submodule(owner), leaf, nn.Parameter(value, requires_grad=False))
