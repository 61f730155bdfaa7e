"""Order-1 models: the next token's distribution is a row of a table. Small enough to enumerate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TableModel:
    """Row t holds the distribution behind token t: [V, V] float64."""

    rows: Tensor

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.rows.shape[0]

    def joint(self, first: int, length: int) -> NDArray[np.float64]:
        """[V] * length: probabilities of the next ``length`` tokens behind ``first``."""
        table = self.rows.numpy()
        joint = table[first]
        for _ in range(length - 1):
            joint = joint[..., None] * table
        return np.asarray(joint)


def random_table(vocab_size: int, seed: int, *, sharpness: float = 1.5) -> TableModel:
    """A table of softmax rows; one token of every row is impossible."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(
        vocab_size, vocab_size, generator=generator, dtype=torch.float64
    )
    impossible = torch.randint(vocab_size, (vocab_size, 1), generator=generator)
    return TableModel(logits.scatter(1, impossible, -torch.inf).softmax(-1))
