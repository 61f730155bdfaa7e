"""Which tensors of a Hugging Face checkpoint make up each parameter, and their shapes.

Merged parameters (qkv, gate_up) are several checkpoint tensors, one under the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.models.config import ModelConfig


class Piece(NamedTuple):
    """One checkpoint tensor with the shape it must have."""

    name: str
    shape: tuple[int, ...]


def pieces_of(parameter: str, config: ModelConfig) -> tuple[Piece, ...]:
    """The checkpoint tensors that make up ``parameter``, in the order of its rows."""
    if parameter.startswith("layers."):
        _, index, rest = parameter.split(".", 2)
        prefix = f"model.layers.{index}"
        return tuple(Piece(f"{prefix}.{name}", shape) for name, shape in _layer(config)[rest])
    return (_ends(config)[parameter],)


def split_pieces(parameter: Tensor, pieces: Sequence[Piece]) -> dict[str, Tensor]:
    """A merged parameter as the checkpoint tensors that make it up, by name: for saving."""
    parts = torch.split(parameter.detach().cpu(), [piece.shape[0] for piece in pieces])
    return {piece.name: part.contiguous() for piece, part in zip(pieces, parts, strict=True)}


def expected_names(config: ModelConfig) -> frozenset[str]:
    """Every tensor name that a checkpoint of this model may hold."""
    ends = {piece.name for piece in _ends(config).values()}
    layer = [name for pieces in _layer(config).values() for name, _ in pieces]
    indices = range(config.num_layers)
    return frozenset(ends | {f"model.layers.{i}.{name}" for i in indices for name in layer})


def is_harmless(name: str, config: ModelConfig) -> bool:
    """Whether an unexpected tensor may be ignored: rotary tables, a copy of a tied head."""
    if name.endswith("rotary_emb.inv_freq"):
        return True
    return config.tie_word_embeddings and name == "lm_head.weight"


def _ends(config: ModelConfig) -> dict[str, Piece]:
    table = (config.vocab_size, config.hidden_size)
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return {
        "embed.weight": Piece("model.embed_tokens.weight", table),
        "norm.weight": Piece("model.norm.weight", (config.hidden_size,)),
        "head.weight": Piece(head, table),
    }


def _layer(config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, kv = config.query_size, config.kv_size
    layer = {
        "attention.norm.weight": (Piece("input_layernorm.weight", (hidden,)),),
        "attention.qkv.weight": (
            Piece("self_attn.q_proj.weight", (query, hidden)),
            Piece("self_attn.k_proj.weight", (kv, hidden)),
            Piece("self_attn.v_proj.weight", (kv, hidden)),
        ),
        "attention.o.weight": (Piece("self_attn.o_proj.weight", (hidden, query)),),
        "mlp.norm.weight": (Piece("post_attention_layernorm.weight", (hidden,)),),
        "mlp.gate_up.weight": (
            Piece("mlp.gate_proj.weight", (inner, hidden)),
            Piece("mlp.up_proj.weight", (inner, hidden)),
        ),
        "mlp.down.weight": (Piece("mlp.down_proj.weight", (hidden, inner)),),
    }
    if config.has_qk_norm:
        layer["attention.q_norm.weight"] = (Piece("self_attn.q_norm.weight", (config.head_dim,)),)
        layer["attention.k_norm.weight"] = (Piece("self_attn.k_norm.weight", (config.head_dim,)),)
    return layer
