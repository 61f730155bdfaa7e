"""Pipeline stages: keep this rank's layers of a model, keyed by their global index.

The keys survive the cut, so parameter names, probes and weight files speak of the same layer on
every stage.
"""

from __future__ import annotations

from typing import Protocol

from torch import nn

from parallel.mesh import Mesh
from parallel.slices import even_range


class Staged(Protocol):
    """A model that can be cut: layers by global index, and ends that may be absent."""

    layers: nn.ModuleDict
    embed: nn.Module | None
    norm: nn.Module | None
    head: nn.Module | None


def stage_layers(num_layers: int, stage: int, num_stages: int) -> range:
    """The global layer indices of a stage.

    Raises:
        ValueError: a stage would be empty.
    """
    if num_stages > num_layers:
        raise ValueError(
            f"pipeline_parallel_size={num_stages} is impossible for a model with {num_layers} "
            f"layers: allowed are 1 to {num_layers}"
        )
    return even_range(num_layers, stage, num_stages)


def stage_of_layer(layer: int, num_layers: int, num_stages: int) -> int:
    """The stage that holds a global layer index."""
    stages = range(num_stages)
    return next(stage for stage in stages if layer in stage_layers(num_layers, stage, num_stages))


def keep_stage(model: Staged, mesh: Mesh) -> None:
    """Delete the layers and the ends that other stages hold; in place."""
    kept = stage_layers(len(model.layers), mesh.stage, mesh.num_stages)
    for name in list(model.layers):
        if int(name) not in kept:
            del model.layers[name]
    if not mesh.is_first_stage:
        model.embed = None
    if not mesh.is_last_stage:
        model.norm = None
        model.head = None
