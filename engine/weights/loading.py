"""Build this rank's decoder on the meta device, then fill it with exactly the slices it keeps."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from engine.models.decoder import Decoder
from engine.models.registry import build_decoder, sharding_plan
from engine.weights.checkpoint import Checkpoint
from engine.weights.model_config import read_model_config
from engine.weights.names import pieces_of
from engine.weights.resolve import resolve_model
from parallel.mesh import Mesh
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


def fill_decoder(decoder: Decoder, checkpoint: Checkpoint, mesh: Mesh) -> None:
    """Read every parameter of a meta decoder; in place. Shared parameters are read once.

    Raises:
        ValueError: a tensor is missing, superfluous, misshapen or unreadable.
    """
    config = decoder.config
    plan = sharding_plan(config, tp_rank=mesh.tp_rank, tp_size=mesh.tp_size)
    parameters = list(decoder.named_parameters(remove_duplicate=False))
    checkpoint.check_names(config)
    for name, _ in parameters:
        for piece in pieces_of(plain_name(name), config):
            checkpoint.check_piece(piece)
    loaded: dict[int, nn.Parameter] = {}
    for name, parameter in parameters:
        if id(parameter) not in loaded:
            pieces, shard = pieces_of(plain_name(name), config), plan.shard(plain_name(name))
            value = checkpoint.read(pieces, shard, dtype=decoder.dtype)
            assert value.shape == parameter.shape, name
            loaded[id(parameter)] = nn.Parameter(value, requires_grad=False)
        module_name, _, leaf = name.rpartition(".")
        setattr(decoder.get_submodule(module_name), leaf, loaded[id(parameter)])
