"""Losses against sums written out by hand, masks at their edges, acceptance by counting."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from drafters.training.losses import (
    accepted_lengths,
    argmax_agreement,
    kl_divergence,
    masked_mean,
    sampled_acceptance,
    shift_targets,
    stepped_acceptance,
    training_time_test_weights,
    weighted_total,
)

DRAFT_IDS = torch.tensor([1, 4, 6])


def logits(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 2


def softmax(values: list[float]) -> list[float]:
    """Written out, as the reference."""
    exponentials = [math.exp(value) for value in values]
    return [value / sum(exponentials) for value in exponentials]


def test_kl_is_the_sum_written_out_and_zero_for_equal_logits() -> None:
    verifier_NV, draft_NV = logits(2, 6), logits(6, 2).reshape(2, 6)
    mask_N = torch.ones(2, dtype=torch.bool)
    wanted = 0.0
    for verifier, draft in zip(verifier_NV.tolist(), draft_NV.tolist(), strict=True):
        pairs = zip(softmax(verifier), softmax(draft), strict=True)
        wanted += sum(p * math.log(p / q) for p, q in pairs) / 2
    assert float(kl_divergence(verifier_NV, draft_NV, mask_N)) == pytest.approx(wanted, rel=1e-5)
    assert float(kl_divergence(verifier_NV, verifier_NV + 7, mask_N)) == pytest.approx(0, abs=1e-6)


def test_kl_is_forward_from_verifier_to_drafter() -> None:
    """Catches swapped arguments: a drafter that is sure of a wrong token costs more."""
    verifier_NV, draft_NV = torch.tensor([[0.0, 0.0]]), torch.tensor([[8.0, -8.0]])
    mask_N = torch.tensor([True])
    assert kl_divergence(verifier_NV, draft_NV, mask_N) > 7
    assert kl_divergence(draft_NV, verifier_NV, mask_N) < 1


def test_losses_of_bfloat16_logits_are_computed_in_float32() -> None:
    draft_NV, verifier_NV = logits(3, 8).bfloat16(), logits(8, 3).reshape(3, 8).bfloat16()
    mask_N = torch.ones(3, dtype=torch.bool)
    exact = kl_divergence(verifier_NV.double(), draft_NV.double(), mask_N)
    found = kl_divergence(verifier_NV, draft_NV, mask_N)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(exact), rel=1e-5)


def test_gradient_is_zero_outside_the_mask_even_where_values_are_infinite() -> None:
    values_N = torch.tensor([1.0, torch.inf, 3.0], requires_grad=True)
    mean = masked_mean(values_N, torch.tensor([True, False, True]))
    mean.backward()  # type: ignore[no-untyped-call]
    assert mean.item() == 2.0
    assert values_N.grad is not None
    assert values_N.grad.tolist() == [0.5, 0.0, 0.5]


def test_nothing_in_the_mask_gives_zero_not_nan() -> None:
    assert masked_mean(torch.ones(3), torch.zeros(3, dtype=torch.bool)).item() == 0.0


def test_first_generated_token_is_a_target_and_the_last_row_is_not() -> None:
    """The slip of SD²'s code: with the mask unmoved, the row before the answer is not trained."""
    generated_BT = torch.tensor([[False, False, True, True, False]])
    assert shift_targets(generated_BT).tolist() == [[False, True, True, False, False]]
    assert shift_targets(generated_BT, 2).tolist() == [[True, True, False, False, False]]
    assert not shift_targets(generated_BT, 9).any()
    assert shift_targets(generated_BT, 0).equal(generated_BT)


def test_training_time_test_weights_decay() -> None:
    assert training_time_test_weights(3) == pytest.approx((1.0, 0.8, 0.64))
    losses = [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)]
    assert weighted_total(losses, training_time_test_weights(3)).item() == pytest.approx(4.52)
    for steps, decay in ((0, 0.8), (3, 0.0), (3, 1.1)):
        with pytest.raises(ValueError, match="at least 1 step and a decay"):
            training_time_test_weights(steps, decay)


def test_agreement_compares_verifier_ids() -> None:
    """Catches comparing a draft vocabulary's index with a verifier's id."""
    draft_ND = torch.tensor([[0.0, 5.0, 1.0], [9.0, 5.0, 1.0]])
    assert argmax_agreement(draft_ND, DRAFT_IDS, torch.tensor([4, 4])).tolist() == [True, False]


def test_sampled_acceptance_is_the_overlap() -> None:
    p_NV, q_NV = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0, 0]]), torch.tensor([[0.2, 0.3, 0.5]] * 2)
    assert sampled_acceptance(p_NV, q_NV, torch.tensor([True, False])).item() == pytest.approx(0.5)


def test_stepping_crosses_accepted_drafts_and_counts_each_step_once() -> None:
    """Steps at 1, 4, 5: three accepted of 2 + 0 + 1; the easy position 2 is never a start."""
    accepted_BT = torch.tensor([[9, 2, 9, 9, 0, 1, 9, 9]])
    starts_BT = torch.tensor([[0, 1, 1, 1, 1, 1, 1, 0]]).bool()
    assert stepped_acceptance(accepted_BT, starts_BT) == pytest.approx(3 / 3)
    assert stepped_acceptance(accepted_BT, torch.zeros_like(starts_BT)) == 0.0


def test_stepping_counts_the_steps_of_all_sequences_alike() -> None:
    accepted_BT = torch.tensor([[0, 0, 0], [2, 9, 9]])
    assert stepped_acceptance(accepted_BT, torch.ones(2, 3, dtype=torch.bool)) == pytest.approx(0.5)


def test_accepted_lengths_count_agreements_in_a_row() -> None:
    agree_BT = torch.tensor([[True, True, True, False, True], [False] * 5])
    assert accepted_lengths(agree_BT, 2).tolist() == [[2, 2, 1, 0, 1], [0] * 5]
