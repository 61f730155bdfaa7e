"""Distillation of a small drafter: the verifier's distribution behind every generated token.

The baseline that SD² calls "Distilled" (arXiv 2511.09844, section 4): the loop and the loss of the
steered drafter, without steering.

Legend: B sequences, T positions, R = B·T rows, L rows that count, H hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drafters.training.batches import Batch
from drafters.training.frozen_verifier import FrozenVerifier, VerifierStates
from drafters.training.fused_losses import fused_kl
from drafters.training.losses import (
    accepted_lengths,
    masked_mean,
    shift_targets,
    stepped_acceptance,
)
from drafters.training.task import ACCEPTANCE, LossAndMetrics
from drafters.training.whole_sequences import PaddedBatch
from engine.models.decoder import Decoder
from engine.models.layers import Linear

LOOKAHEAD = 5
"""Length of the chains whose acceptance is reported."""


class SmallTask:
    """Implements ``drafters.training.task.TrainingTask`` for a drafter without steering."""

    def __init__(self, drafter: Decoder, verifier: FrozenVerifier) -> None:
        unfreeze_layers(drafter)
        self._drafter, self._verifier = drafter, verifier

    @property
    def module(self) -> nn.Module:
        """The drafter."""
        return self._drafter

    def loss(self, batch: Batch, generator: torch.Generator) -> LossAndMetrics:
        """KL(verifier || drafter), and the accepted length of chains when decoding."""
        del generator
        states = self._verifier.states(batch.token_ids, ())
        hidden_RH = self._drafter(batch.token_ids.flatten(), PaddedBatch(*batch.token_ids.shape))
        return distillation(self._drafter, self._verifier, batch, states, hidden_RH)


def distillation(
    drafter: Decoder,
    verifier: FrozenVerifier,
    batch: Batch,
    states: VerifierStates,
    hidden_RH: Tensor,
) -> LossAndMetrics:
    """The loss and the metrics of a drafter's pass, at rows whose next token was generated.

    SD²'s code does not move its loss mask, so the first generated token is never learned; here a
    row counts when the token that it predicts does.
    """
    counts_BT = shift_targets(batch.generated, 1)
    rows = counts_BT.flatten()
    assert drafter.norm is not None
    assert isinstance(drafter.head, Linear)
    final_LG = states.final[counts_BT]
    loss, agree_L = fused_kl(
        drafter.norm(hidden_RH[rows]),
        drafter.head.weight,
        lambda chunk: verifier.logits(final_LG[chunk]),
    )
    agree_BT = torch.zeros_like(counts_BT)
    agree_BT[counts_BT] = agree_L
    accepted = stepped_acceptance(accepted_lengths(agree_BT, LOOKAHEAD), counts_BT)
    first = float(masked_mean(agree_BT.float(), counts_BT))
    return loss, {ACCEPTANCE: accepted, "first_agreement": first}


def unfreeze_layers(drafter: Decoder) -> None:
    """Train layers and final norm; embedding and head stay the verifier's, which are shared."""
    drafter.requires_grad_(requires_grad=False)
    assert drafter.norm is not None
    for part in (drafter.layers, drafter.norm):
        part.requires_grad_(requires_grad=True)
