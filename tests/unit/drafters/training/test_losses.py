"""Masks at their edges, weights written out by hand, acceptance by counting."""

from __future__ import annotations

import pytest
import torch

from drafters.training.losses import (
    accepted_lengths,
    masked_mean,
    shift_targets,
    stepped_acceptance,
    training_time_test_weights,
    weighted_total,
)


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
