"""What a rank's memory holds: weights, workspace, and how many tokens of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from engine.models.config import ModelConfig
from launch.plan.machine import Machine
from launch.plan.verifier import num_weights

USABLE_SHARE = 0.92
"""Of the device's memory; the rest is the driver's and the allocator's."""
WORKSPACE_BYTES = 2e9
"""Activations, collectives' buffers and graphs of a rank: modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes on the fullest rank."""

    size: float
    weights: float
    workspace: float
    kv_per_token: float

    @property
    def free(self) -> float:
        """Left for keys and values; negative when the weights alone do not fit."""
        return self.size * USABLE_SHARE - self.weights - self.workspace

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values fit."""
        return max(0, int(self.free / self.kv_per_token))


def rank_memory(
    machine: Machine,
    model: ModelConfig,
    *,
    tensor_parallel: int,
    pipeline_parallel: int,
    bytes_per_weight: float,
) -> RankMemory:
    """Of a rank of the first or last stage, which also hold embedding and head."""
    layer, vocabulary = num_weights(model)
    layers = -(-model.num_layers // pipeline_parallel)
    ends = vocabulary if pipeline_parallel == 1 else vocabulary / (2 - model.tie_word_embeddings)
    heads = max(1.0, model.num_kv_heads / tensor_parallel)
    return RankMemory(
        size=machine["memory_size"],
        weights=(layers * layer + ends) / tensor_parallel * bytes_per_weight,
        workspace=WORKSPACE_BYTES,
        kv_per_token=2 * layers * heads * model.head_dim * bytes_per_weight,
    )
