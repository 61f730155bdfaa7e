"""EAGLE-3 heads on disk: read from all public layouts, written in SpecForge's.

Names are SafeAILab's and SpecForge's (``midlayer.*``); speculators' ``layers.0.*`` are the same
tensors. Whatever is wrong is one sentence that names the file, the tensor and what was expected.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from drafters.eagle3_config import Eagle3Config, read_eagle3_config, write_eagle3_config
from drafters.eagle3_head import Eagle3Head, FeatureFusion
from drafters.stored_tensors import D2T, T2D, StoredTensors, read_vocabulary, set_parameter
from engine.features import FeatureProjection
from engine.models.config import ModelConfig
from engine.weights import read_model_config
from engine.weights.checkpoint import SINGLE_NAME
from engine.weights.loading import load_parameter
from engine.weights.names import Piece, split_pieces

PICKLE_NAME = "pytorch_model.bin"

_EMBEDDING = "embed_tokens.weight"
_LAYER = "layers.0."
"""What speculators call ``midlayer.``"""


def load_eagle3(directory: Path, verifier: Path, *, dtype: torch.dtype) -> Eagle3Head:
    """The head in ``directory`` for the model in ``verifier``, on the CPU, frozen.

    A head without an embedding gets the verifier's.

    Raises:
        ValueError: one sentence about the configuration, a file or a tensor.
    """
    target = read_model_config(verifier)
    config, tensors = _open(directory, target)
    vocabulary = read_vocabulary(
        tensors, size=config.draft_vocab_size, vocab_size=config.layer.vocab_size
    )
    head = Eagle3Head(config, vocabulary, dtype=dtype, device=torch.device("meta"))
    for name, pieces in _pieces(config).items():
        if name == "embed.weight" and not config.has_embedding:
            value = load_parameter(verifier, name, dtype=dtype)
        else:
            value = torch.cat([tensors.read(piece).to(dtype) for piece in pieces])
        set_parameter(head, name, value)
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
            set_parameter(fusion, name.removeprefix("fc."), tensors.read(piece).to(dtype))
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
    tensors[D2T], tensors[T2D] = head.vocabulary.offsets, head.vocabulary.membership
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / SINGLE_NAME, metadata={"format": "pt"})
    text = json.dumps(write_eagle3_config(config), indent=2) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")


def _open(directory: Path, verifier: ModelConfig) -> tuple[Eagle3Config, StoredTensors]:
    config = read_eagle3_config(directory, verifier)
    tensors = StoredTensors(directory, (SINGLE_NAME, PICKLE_NAME), canonical=_canonical)
    config = replace(config, has_embedding=_EMBEDDING in tensors)
    if not config.has_embedding and config.layer.hidden_size != verifier.hidden_size:
        raise ValueError(
            f"{directory}: tensor {_EMBEDDING} of shape "
            f"{[config.layer.vocab_size, config.layer.hidden_size]} is missing: the verifier's "
            f"embedding is {verifier.hidden_size} wide and cannot take its place"
        )
    known = {piece.name for pieces in _pieces(config).values() for piece in pieces}
    tensors.check(known | {D2T, T2D}, what="an EAGLE-3 head")
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


def _canonical(name: str) -> str:
    return "midlayer." + name.removeprefix(_LAYER) if name.startswith(_LAYER) else name
