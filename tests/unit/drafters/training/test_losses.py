"""Losses against sums written out by hand, masks at their edges, acceptance by counting."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from drafters.training.losses import (
    argmax_agreement,
    chains_of,
    expected_accepted_length,
    kl_divergence,
    masked_mean,
    restrict_targets,
    sampled_acceptance,
    shift_targets,
    soft_target_cross_entropy,
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


def test_targets_are_the_verifiers_probabilities_renormalised() -> None:
    verifier_NV = logits(5, 8)
    targets = restrict_targets(verifier_NV, DRAFT_IDS)
    for row, wanted in zip(verifier_NV.tolist(), targets.probs.tolist(), strict=True):
        whole = softmax(row)
        kept = [whole[index] for index in DRAFT_IDS.tolist()]
        assert wanted == pytest.approx([value / sum(kept) for value in kept], rel=1e-5)


def test_positions_whose_best_token_cannot_be_drafted_are_named() -> None:
    verifier_NV = torch.zeros(3, 8)
    verifier_NV[0, 4], verifier_NV[1, 5], verifier_NV[2, 1] = 9.0, 9.0, 9.0
    assert restrict_targets(verifier_NV, DRAFT_IDS).in_vocabulary.tolist() == [True, False, True]


def test_cross_entropy_is_the_sum_written_out_over_masked_positions_only() -> None:
    """Catches a mean over all positions, which shrinks the loss with padding."""
    draft_ND, targets = logits(4, 3), restrict_targets(logits(4, 8), DRAFT_IDS)
    mask_N = torch.tensor([True, False, True, False])
    wanted = 0.0
    for position in (0, 2):
        q = softmax(draft_ND[position].tolist())
        p = targets.probs[position].tolist()
        wanted -= sum(p[index] * math.log(q[index]) for index in range(3)) / 2
    found = soft_target_cross_entropy(draft_ND, targets.probs, mask_N)
    assert float(found) == pytest.approx(wanted, rel=1e-5)


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


def test_accepted_length_of_whole_chains_is_their_mean() -> None:
    agree_SN = torch.tensor([[1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 1]]).bool()
    lengths = [2, 1, 0, 3]
    found = expected_accepted_length(agree_SN, torch.ones_like(agree_SN))
    assert found == pytest.approx(sum(lengths) / 4)


def test_chains_cut_by_the_end_of_the_answer_do_not_lower_the_length() -> None:
    """A drafter that always agrees has the full length, however short the answers are."""
    agree_SN = torch.ones(3, 4, dtype=torch.bool)
    mask_SN = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]).bool()
    assert expected_accepted_length(agree_SN, mask_SN) == pytest.approx(3.0)
    assert expected_accepted_length(agree_SN, torch.zeros_like(mask_SN)) == 0.0


def test_chains_start_at_every_position() -> None:
    agree_BT = torch.tensor([[True, True, False, True]])
    assert chains_of(agree_BT, 2).tolist() == [
        [[True, True, False, True]],
        [[True, False, True, False]],
    ]


def test_sampled_acceptance_is_the_overlap() -> None:
    p_NV, q_NV = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0, 0]]), torch.tensor([[0.2, 0.3, 0.5]] * 2)
    assert sampled_acceptance(p_NV, q_NV, torch.tensor([True, False])).item() == pytest.approx(0.5)
