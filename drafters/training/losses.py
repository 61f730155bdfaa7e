"""Which positions count in a drafter's loss, how much, and what agreement says about acceptance.

Means run over the positions that count; where none counts a mean is 0, with a gradient of 0.

Legend: B sequences, T positions, N positions of any arrangement.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def masked_mean(values_N: Tensor, mask_N: Tensor) -> Tensor:
    """Mean over the positions in the mask; 0 when there are none.

    Values outside the mask are dropped, not multiplied by 0: a NaN there stays out.
    """
    kept_N = torch.where(mask_N, values_N, torch.zeros_like(values_N))
    return kept_N.sum() / mask_N.sum().clamp(min=1)


def shift_targets(token_mask_BT: Tensor, distance: int = 1) -> Tensor:
    """[B, T] bool: the token ``distance`` positions on is in the mask; False beyond the end.

    A row predicts a later token, so a mask over tokens has to move before it selects rows. Neither
    SD²'s code (the mask is not moved at all) nor EAGLE-3's (it is not moved with the steps of
    training-time test) does; SpecForge issue 885 describes what it costs: the very first draft
    after a prompt is never trained.
    """
    assert distance >= 0
    moved_BT = torch.zeros_like(token_mask_BT)
    if distance < token_mask_BT.shape[-1]:
        moved_BT[..., : token_mask_BT.shape[-1] - distance] = token_mask_BT[..., distance:]
    return moved_BT


def training_time_test_weights(num_steps: int, decay: float = 0.8) -> tuple[float, ...]:
    """Weight ``decay**j`` of the loss of step j: EAGLE-3's training-time test, 0.8 in its code."""
    if num_steps < 1 or not 0 < decay <= 1:
        raise ValueError(
            "training-time test needs at least 1 step and a decay above 0 and at most 1, "
            f"not {num_steps} and {decay}."
        )
    return tuple(decay**step for step in range(num_steps))


def weighted_total(losses: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Σ weight · loss over the steps; not divided by the weights, as in EAGLE-3's code."""
    terms = [weight * loss for weight, loss in zip(weights, losses, strict=True)]
    return torch.stack(terms).sum()


def stepped_acceptance(accepted_BT: Tensor, starts_BT: Tensor) -> float:
    """Accepted draft tokens per step of greedy decoding that goes through these answers.

    ``accepted_BT`` counts the drafts that a chain from a position gets accepted, ``starts_BT`` is
    True where a chain is possible at all. A step accepts n drafts and emits n + 1 tokens, so the
    next chain starts n + 1 positions on. The mean over *all* positions would count easy stretches
    token by token, though decoding crosses them in few steps: it says far more.
    """
    steps = accepted = 0
    for accepted_T, starts_T in zip(accepted_BT.tolist(), starts_BT, strict=True):
        places = starts_T.nonzero()[:, 0].tolist()
        place, end = (places[0], places[-1] + 1) if places else (0, 0)
        while place < end:
            steps += 1
            accepted += accepted_T[place]
            place += accepted_T[place] + 1
    return accepted / max(1, steps)


def accepted_lengths(agree_BT: Tensor, lookahead: int) -> Tensor:
    """[B, T] int64: how many positions from each on agree in a row, ``lookahead`` at most.

    Turns the agreement of one teacher-forced pass into accepted drafts: as long as a greedy chain
    is accepted it is the verifier's own text.
    """
    lengths_BT = torch.zeros(agree_BT.shape, dtype=torch.int64)
    run_B = lengths_BT[:, 0]
    for place in reversed(range(agree_BT.shape[1])):
        run_B = (run_B + 1) * agree_BT[:, place]
        lengths_BT[:, place] = run_B
    return lengths_BT.clamp(max=lookahead)
