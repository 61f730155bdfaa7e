"""Medusa heads on disk, in the names that the published heads have.

FasterDecoding/Medusa (medusa/model/medusa_model.py): ``medusa_lm_head.pt`` holds, for head k from
0, ``k.0.linear.weight``, ``k.0.linear.bias`` and its vocabulary projection ``k.1.weight``, in some
copies behind ``medusa_head.``. Its ``config.json`` has no sizes, and published ones count two heads
where the file has five, so heads are counted in the file. Ours leave the projections out (the
verifier's head takes their place) and have ``d2t``, ``t2d`` and, in ``config.json``, the static
tree with the accuracies that it was chosen by.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from drafters.medusa_heads import MedusaConfig, MedusaHeads
from drafters.static_tree import StaticTree, guessed_tree
from drafters.stored_tensors import D2T, T2D, StoredTensors, read_vocabulary, set_parameter
from engine.features import NormedState
from engine.models.layers import RMSNorm
from engine.weights import read_model_config
from engine.weights.checkpoint import SINGLE_NAME
from engine.weights.loading import load_parameter
from engine.weights.model_config import read_json
from engine.weights.names import Piece

PUBLISHED_NAMES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
GUESSED_NODES = 63
"""Nodes of the tree of heads that come without one: as many as the published tree has."""

_PREFIX = "medusa_head."
_CHOICES, _ACCURACIES = "medusa_choices", "medusa_head_accuracies"


def load_medusa(directory: Path, verifier: Path, *, dtype: torch.dtype) -> MedusaHeads:
    """The heads in ``directory`` for the model in ``verifier``, on the CPU, frozen.

    Raises:
        ValueError: one sentence about the configuration, a file or a tensor.
    """
    fields, tensors = _fields(directory), _open(directory)
    config = _config(directory, fields, tensors, verifier)
    vocabulary = read_vocabulary(
        tensors, size=config.draft_vocab_size, vocab_size=config.vocab_size
    )
    heads = MedusaHeads(config, vocabulary, dtype=dtype, device=torch.device("meta"))
    hidden = config.hidden_size
    for name, leaf, shape in (
        ("weight", "0.linear.weight", (hidden, hidden)),
        ("bias", "0.linear.bias", (hidden,)),
    ):
        pieces = [Piece(f"{head}.{leaf}", shape) for head in range(config.num_heads)]
        stacked = torch.stack([tensors.read(piece).to(dtype) for piece in pieces])
        set_parameter(heads, name, stacked)
    if config.shares_projection:
        heads.set_projection(0, load_parameter(verifier, "head.weight", dtype=dtype))
    else:
        for head in range(config.num_heads):
            piece = Piece(f"{head}.1.weight", (config.draft_vocab_size, hidden))
            set_parameter(heads, f"projections.{head}.weight", tensors.read(piece).to(dtype))
    return heads.eval()


def load_tree(directory: Path, *, num_heads: int) -> StaticTree:
    """The static tree of the heads in ``directory``; a guess where they come without one.

    Raises:
        ValueError: a tree or accuracies that are none; one sentence.
    """
    fields = _fields(directory)
    if fields.get(_CHOICES) is None:
        return guessed_tree(num_heads, GUESSED_NODES)
    try:
        return StaticTree(
            nodes=tuple(tuple(map(int, node)) for node in fields[_CHOICES]),
            accuracies=tuple(tuple(map(float, row)) for row in fields.get(_ACCURACIES) or ()),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{directory / 'config.json'}: {_CHOICES} or {_ACCURACIES}: {error}"
        ) from error


def load_medusa_projection(verifier: Path, *, dtype: torch.dtype) -> NormedState:
    """What the verifier's pass reads for any Medusa heads: the last state behind the final norm.

    Raises:
        ValueError: the verifier has no such norm.
    """
    config = read_model_config(verifier)
    norm = RMSNorm(
        config.hidden_size, config.rms_norm_eps, dtype=dtype, device=torch.device("meta")
    )
    set_parameter(norm, "weight", load_parameter(verifier, "norm.weight", dtype=dtype))
    return NormedState(tap=config.num_layers, norm=norm)


def check_medusa(directory: Path, verifier: Path) -> None:
    """Refuse early heads that are missing or do not fit, without reading their weights.

    Raises:
        ValueError: as ``load_medusa`` and ``load_tree``, but for tensors that are damaged inside.
    """
    config = _config(directory, _fields(directory), _open(directory), verifier)
    load_tree(directory, num_heads=config.num_heads)


def save_medusa(heads: MedusaHeads, tree: StaticTree, directory: Path) -> None:
    """Write ``config.json`` and ``model.safetensors``; a shared projection is left out.

    Not for heads that were prepared for inference: their matrices are packed.
    """
    config = heads.config
    tensors = {D2T: heads.vocabulary.offsets, T2D: heads.vocabulary.membership}
    for head in range(config.num_heads):
        tensors[f"{head}.0.linear.weight"] = heads.weight.detach()[head].contiguous()
        tensors[f"{head}.0.linear.bias"] = heads.bias.detach()[head].contiguous()
        if not config.shares_projection:
            projection = heads.get_parameter(f"projections.{head}.weight")
            tensors[f"{head}.1.weight"] = projection.detach().contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / SINGLE_NAME, metadata={"format": "pt"})
    fields = {
        "model_type": "medusa",
        "medusa_num_heads": config.num_heads,
        "medusa_num_layers": 1,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        _ACCURACIES: [[round(share, 5) for share in row] for row in tree.accuracies],
        _CHOICES: [list(node) for node in tree.nodes],
    }
    (directory / "config.json").write_text(json.dumps(fields) + "\n", encoding="utf-8")


def _fields(directory: Path) -> dict[str, Any]:
    fields = read_json(directory / "config.json")
    layers, file = fields.get("medusa_num_layers"), directory / "config.json"
    if layers not in (1, None):
        raise ValueError(f"{file}: medusa_num_layers={layers} is not supported: allowed is 1")
    return fields


def _open(directory: Path) -> StoredTensors:
    names = (SINGLE_NAME, *PUBLISHED_NAMES)
    return StoredTensors(directory, names, canonical=lambda name: name.removeprefix(_PREFIX))


def _config(
    directory: Path, fields: dict[str, Any], tensors: StoredTensors, verifier: Path
) -> MedusaConfig:
    target = read_model_config(verifier)
    for name, wanted in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        if fields.get(name) not in (wanted, None):
            raise ValueError(
                f"{directory / 'config.json'}: {name} is {fields[name]}, but the verifier's is "
                f"{wanted}: the heads were made for another verifier"
            )
    num_heads = _count_heads(directory, tensors)
    parts = ("0.linear.weight", "0.linear.bias", "1.weight")
    known = {f"{head}.{part}" for head in range(num_heads) for part in parts}
    tensors.check(known | {D2T, T2D}, what="a set of Medusa heads")
    return MedusaConfig(
        num_heads=num_heads,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=fields.get("draft_vocab_size") or target.vocab_size,
        shares_projection="0.1.weight" not in tensors,
    )


def _count_heads(directory: Path, tensors: StoredTensors) -> int:
    """Heads are numbered from 0 without a gap."""
    count = 0
    while f"{count}.0.linear.weight" in tensors:
        count += 1
    if count == 0:
        raise ValueError(
            f"{directory} holds no Medusa heads: their first tensor is 0.0.linear.weight, and "
            f"there is {next(iter(tensors.names), 'none')}"
        )
    return count
