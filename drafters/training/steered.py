"""Training of steering (SD², arXiv 2511.09844, section 3; ETH-DISCO/SD-square, ``process_batch``).

A row that will be drafted ``offset`` tokens behind row NA is steered by the state that many rows
before it. Which offset a row trains with is the ablation of the paper: one for the whole batch
(the method), one for every row, or the block structure of drafting itself.

Legend: B sequences, T positions, R = B·T rows, N steered layers, I bias width, S verifier hidden.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from drafters.steered import Steering
from drafters.training.batches import Batch
from drafters.training.frozen_verifier import FrozenVerifier
from drafters.training.losses import shift_targets
from drafters.training.small import distillation, unfreeze_layers
from drafters.training.task import LossAndMetrics
from drafters.training.whole_sequences import PaddedBatch
from engine.models.decoder import Decoder

Offsets = Callable[[tuple[int, int], int, torch.Generator], Tensor]
"""(shape [B, T], lookahead, generator) to [B, T] int64: rows from each to its state."""


def one_offset(shape: tuple[int, int], lookahead: int, generator: torch.Generator) -> Tensor:
    """The method: one offset from 1 to ``lookahead`` for the whole batch."""
    offset = torch.randint(1, lookahead + 1, (), generator=generator)
    return offset.expand(shape)


def random_offsets(shape: tuple[int, int], lookahead: int, generator: torch.Generator) -> Tensor:
    """Ablation: every row draws its own."""
    return torch.randint(1, lookahead + 1, shape, generator=generator)


def block_offsets(shape: tuple[int, int], lookahead: int, generator: torch.Generator) -> Tensor:
    """Ablation: rows of one block share the state before the block, as in drafting."""
    start = torch.randint(0, lookahead, (), generator=generator)
    places = (torch.arange(shape[1]) - start - 1) % lookahead
    return (places + 1).expand(shape)


OFFSETS: dict[str, Offsets] = {
    "one": one_offset,
    "random": random_offsets,
    "block": block_offsets,
}
"""By the names that users choose from."""


class SteeredTask:
    """Implements ``drafters.training.task.TrainingTask`` for a steered drafter."""

    def __init__(
        self,
        drafter: Decoder,
        steering: Steering,
        verifier: FrozenVerifier,
        *,
        lookahead: int,
        offsets: Offsets = one_offset,
    ) -> None:
        """Train head and drafter; ``freeze_drafter`` leaves the head alone to learn."""
        unfreeze_layers(drafter)
        steering.head.requires_grad_(requires_grad=True)
        self._drafter, self._steering, self._verifier = drafter, steering, verifier
        self._lookahead, self._offsets = lookahead, offsets
        self._module = nn.ModuleDict({"drafter": drafter, "steering": steering.head})

    def freeze_drafter(self) -> None:
        """The paper's "frozen drafter": only the steering head is trained."""
        self._drafter.requires_grad_(requires_grad=False)

    @property
    def module(self) -> nn.Module:
        """``drafter`` and ``steering``."""
        return self._module

    def loss(self, batch: Batch, generator: torch.Generator) -> LossAndMetrics:
        """KL(verifier || drafter) with every row steered from an offset before it."""
        head = self._steering.head
        states = self._verifier.states(batch.token_ids, head.shape.taps)
        vectors_BTS = head.mix(states.taps.flatten(2).to(head.mix.weight.dtype))
        shape = (batch.token_ids.shape[0], batch.token_ids.shape[1])
        offsets = self._offsets(shape, self._lookahead, generator)
        signals = head(shifted_back(vectors_BTS, offsets))
        steered_BT = shift_targets(batch.generated, 1)
        signals = signals * steered_BT[..., None, None]
        self._steering.set_signals(signals.flatten(0, 1).transpose(0, 1))
        hidden_RH = self._drafter(batch.token_ids.flatten(), PaddedBatch(*shape))
        self._steering.clear()
        return distillation(self._drafter, self._verifier, batch, states, hidden_RH)


def shifted_back(vectors_BTS: Tensor, offsets_BT: Tensor) -> Tensor:
    """[B, T, S]: at every row the vector ``offsets`` rows before it, at least row 0."""
    rows = torch.arange(vectors_BTS.shape[1]) - offsets_BT
    index = rows.clamp(min=0)[..., None].expand_as(vectors_BTS)
    return vectors_BTS.gather(1, index)
