"""The noise that chooses sampled tokens: a function of (seed, position) and nothing else.

It comes from a counter (Philox, Salmon et al. 2011), not from a stream that is used up. So a
request gets the same token at the same position alone or in a batch, drafted or not, at any
tensor-parallel size, and after it was interrupted and resumed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_RACE, _ACCEPTANCE, _DRAFT = 0, 1, 2
"""Which of a position's independent streams is drawn from."""


def race_noise(seed: int, position: int, vocab_size: int) -> Tensor:
    """[V] float64, exponential: who wins a race for the token at a position."""
    generator = _generator(seed, position, _RACE)
    return torch.from_numpy(generator.standard_exponential(vocab_size))


def acceptance_noise(seed: int, position: int) -> float:
    """Uniform in [0, 1): whether the token proposed for a position is accepted."""
    return float(_generator(seed, position, _ACCEPTANCE).random())


def draft_noise(seed: int, position: int, count: int) -> Tensor:
    """[count] float64, exponential, independent of the verifier's: for a drafter's own draws."""
    return torch.from_numpy(_generator(seed, position, _DRAFT).standard_exponential(count))


def _generator(seed: int, position: int, stream: int) -> np.random.Generator:
    key = np.array([seed & (2**64 - 1), position], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=stream << 192))
