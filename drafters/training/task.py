"""What the training loop knows of a drafter: a module, and a loss for a batch."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from drafters.training.batches import Batch

ACCEPTANCE = "acceptance"
"""The metric that every task reports: how much of its drafts the verifier would accept."""

LossAndMetrics = tuple[Tensor, dict[str, float]]


class TrainingTask(Protocol):
    """EAGLE-3, a small model and a steered small model are three of these for one loop."""

    @property
    def module(self) -> nn.Module:
        """What is trained: its parameters that require gradients, and nothing of the verifier.

        With dtype bfloat16 the back end casts it as a whole, buffers included, when training
        starts.
        """
        ...

    def loss(self, batch: Batch, generator: torch.Generator) -> LossAndMetrics:
        """A scalar to minimise, the mean over the batch's positions, and metrics as numbers.

        The metrics hold "acceptance" and have the same keys for every batch. ``generator`` is a CPU
        generator that depends on seed, step and rank alone: everything random is drawn from it.
        """
        ...
