"""Build this rank's decoder on the meta device, then fill it with exactly the slices it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.registry import build_decoder, sharding_plan
from engine.weights.checkpoint import Checkpoint
from engine.weights.model_config import read_model_config
from engine.weights.names import Piece, pieces_of
from engine.weights.resolve import resolve_model
from parallel.mesh import Mesh
from parallel.plan import Shard, ShardStyle
from parallel.tensor import plain_name


def load_model(
    source: str,
    *,
    dtype: torch.dtype,
    mesh: Mesh,
    max_model_len: int,
    cache_dir: Path | None = None,
) -> Decoder:
    """This rank's part of the model, on the CPU; ``source`` is anything ``resolve_model`` takes.

    Raises:
        ValueError: one sentence about the source, its config, its files, or an impossible split.
    """
    directory = resolve_model(source, cache_dir=cache_dir)
    config = read_model_config(directory)
    if not 0 < max_model_len <= config.max_position_embeddings:
        raise ValueError(
            f"max_model_len={max_model_len} is out of range for {source}: allowed are 1 to "
            f"{config.max_position_embeddings} (max_position_embeddings in config.json)"
        )
    decoder = build_decoder(config, mesh=mesh, dtype=dtype, max_model_len=max_model_len)
    fill_decoder(decoder, Checkpoint(directory), mesh)
    return decoder


def load_layers(
    source: str, layers: Sequence[int], *, dtype: torch.dtype, max_model_len: int
) -> Decoder:
    """Some of a model's layers between its embedding and its head, on the CPU; no other is read.

    Raises:
        ValueError: as ``load_model``, or a layer that the model does not have.
    """
    directory = resolve_model(source)
    config = read_model_config(directory)
    missing = [layer for layer in layers if not 0 <= layer < config.num_layers]
    if missing:
        raise ValueError(f"{source} has layers 0 to {config.num_layers - 1}, not {missing[0]}")
    cut = replace(config, num_layers=len(layers))
    decoder = build_decoder(cut, mesh=Mesh.single(), dtype=dtype, max_model_len=max_model_len)
    _fill(decoder, Checkpoint(directory), Mesh.single(), config, layers)
    return decoder


def load_parameter(directory: Path, name: str, *, dtype: torch.dtype) -> Tensor:
    """One whole parameter of a model directory, as ``Decoder`` names it, on the CPU.

    Raises:
        ValueError: as ``load_model``.
    """
    config, checkpoint = read_model_config(directory), Checkpoint(directory)
    pieces = pieces_of(name, config)
    for piece in pieces:
        checkpoint.check_piece(piece)
    return checkpoint.read(pieces, Shard(style=ShardStyle.REPLICATE), dtype=dtype)


def fill_decoder(decoder: Decoder, checkpoint: Checkpoint, mesh: Mesh) -> None:
    """Read every parameter of a meta decoder; in place. Shared parameters are read once.

    Raises:
        ValueError: a tensor is missing, superfluous, misshapen or unreadable.
    """
    _fill(decoder, checkpoint, mesh, decoder.config, range(decoder.config.num_layers))


def _fill(
    decoder: Decoder,
    checkpoint: Checkpoint,
    mesh: Mesh,
    config: ModelConfig,
    layers: Sequence[int],
) -> None:
    """``config`` is the checkpoint's; the decoder's layer i is the checkpoint's ``layers[i]``."""

    def stored(name: str) -> tuple[Piece, ...]:
        plain = plain_name(name)
        if plain.startswith("layers."):
            _, index, rest = plain.split(".", 2)
            plain = f"layers.{layers[int(index)]}.{rest}"
        return pieces_of(plain, config)

    plan = sharding_plan(config, tp_rank=mesh.tp_rank, tp_size=mesh.tp_size)
    parameters = list(decoder.named_parameters(remove_duplicate=False))
    checkpoint.check_names(config)
    for name, _ in parameters:
        for piece in stored(name):
            checkpoint.check_piece(piece)
    loaded: dict[int, nn.Parameter] = {}
    for name, parameter in parameters:
        if id(parameter) not in loaded:
            pieces, shard = stored(name), plan.shard(plain_name(name))
            value = checkpoint.read(pieces, shard, dtype=decoder.dtype)
            assert value.shape == parameter.shape, name
            loaded[id(parameter)] = nn.Parameter(value, requires_grad=False)
        module_name, _, leaf = name.rpartition(".")
        setattr(decoder.get_submodule(module_name), leaf, loaded[id(parameter)])
