"""Losses of neural drafters and what they say about acceptance: pure functions of logits.

Softmaxes are taken in float32 whatever the logits' precision. Means run over the positions that
count; where none counts a mean is 0, with a gradient of 0.

Legend: B sequences, T positions, N positions of any arrangement, V verifier vocabulary, D draft
vocabulary, S draft steps (training-time test) or tokens ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class DraftTargets(NamedTuple):
    """The verifier's distribution as a drafter with its own vocabulary can express it."""

    probs: Tensor
    """[N, D] float32, sums to 1 over the draft vocabulary."""
    in_vocabulary: Tensor
    """[N] bool: the verifier's most likely token is in the draft vocabulary."""


def restrict_targets(verifier_logits_NV: Tensor, draft_ids_D: Tensor) -> DraftTargets:
    """The verifier's softmax, renormalised over the draft vocabulary's token ids.

    EAGLE-3 (arXiv 2503.01840), in the form of its public training code: renormalised soft targets,
    and positions whose most likely token cannot be drafted are masked. The softmax of the chosen
    logits alone *is* the renormalised softmax.
    """
    probs_ND = functional.softmax(verifier_logits_NV[..., draft_ids_D].float(), dim=-1)
    best_N = verifier_logits_NV.argmax(-1)
    return DraftTargets(probs=probs_ND, in_vocabulary=torch.isin(best_N, draft_ids_D))


def soft_target_cross_entropy(
    draft_logits_ND: Tensor, target_probs_ND: Tensor, mask_N: Tensor
) -> Tensor:
    """-Σ p log q, averaged over the positions in the mask (EAGLE-3's loss of one step).

    EAGLE-3's code averages over *all* positions, masked ones included, so its loss shrinks with
    padding; ours does not (reference: EAGLE issue 340).
    """
    log_q_ND = functional.log_softmax(draft_logits_ND.float(), dim=-1)
    return masked_mean(-(target_probs_ND * log_q_ND).sum(-1), mask_N)


def kl_divergence(verifier_logits_NV: Tensor, draft_logits_NV: Tensor, mask_N: Tensor) -> Tensor:
    """KL(verifier || drafter) over the whole vocabulary, averaged over the positions in the mask.

    SD²'s ``loss_method kl``: temperature 1, summed over the vocabulary.
    """
    log_p_NV = functional.log_softmax(verifier_logits_NV.float(), dim=-1)
    log_q_NV = functional.log_softmax(draft_logits_NV.float(), dim=-1)
    return masked_mean((log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(-1), mask_N)


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


def argmax_agreement(draft_logits_ND: Tensor, draft_ids_D: Tensor, token_ids_N: Tensor) -> Tensor:
    """[N] bool: the drafter's most likely token, as a verifier id, is the given one."""
    return draft_ids_D[draft_logits_ND.argmax(-1)] == token_ids_N


def expected_accepted_length(agree_SN: Tensor, mask_SN: Tensor) -> float:
    """Accepted draft tokens of a greedy chain of S, estimated from teacher-forced agreement.

    Step j of a chain that starts at position n was accepted when ``agree_SN[j, n]`` and all steps
    before agreed. Near the end of an answer the later steps of a chain are outside the mask; each
    step's acceptance rate is therefore taken among the chains that reach it and are still in the
    mask, and the length is Σ_j Π_{i≤j} rate_i (the product-limit estimate of Kaplan and Meier,
    1958). When every chain is whole, this is the plain mean of the accepted lengths.
    """
    alive_N = torch.ones_like(mask_SN[0], dtype=torch.bool)
    length, reached = 0.0, 1.0
    for agree_N, mask_N in zip(agree_SN, mask_SN, strict=True):
        asked_N = alive_N & mask_N
        alive_N = asked_N & agree_N
        reached *= float(alive_N.sum()) / max(1, int(asked_N.sum()))
        length += reached
    return length


def chains_of(values_BT: Tensor, lookahead: int) -> Tensor:
    """[S, B, T] bool: the value j positions on, for every j below ``lookahead``; False beyond.

    Turns the agreement of one teacher-forced pass into the chains of ``expected_accepted_length``:
    as long as a greedy chain is accepted it is the verifier's own text.
    """
    return torch.stack([shift_targets(values_BT, step) for step in range(lookahead)])


def sampled_acceptance(verifier_probs_NV: Tensor, draft_probs_NV: Tensor, mask_N: Tensor) -> Tensor:
    """Σ min(p, q), averaged over the mask: the chance that a *sampled* draft token is accepted.

    Leviathan et al. (arXiv 2211.17192), section 3.2: 1 minus the total variation distance.
    """
    return masked_mean(torch.minimum(verifier_probs_NV, draft_probs_NV).sum(-1), mask_N)
