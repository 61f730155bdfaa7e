"""The logistic fit solves its own optimality condition; F1 and AUC agree with their definitions."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from drafters.training.logistic import auc, best_threshold, f1_over_thresholds, fit_logistic

EIGHTHS = st.integers(0, 8).map(lambda count: count / 8)
"""Scores that repeat, so that ties with the threshold occur."""


def _separated(num_rows: int = 600, size: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Dimensions of very different scale; the label follows a hidden direction, noisily."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(num_rows, size, generator=generator)
    direction = torch.randn(size, generator=generator)
    noise = torch.randn(num_rows, generator=generator)
    labels = (states @ direction + noise > 0).float()
    return states * torch.logspace(-2, 3, size), labels


def test_fit_is_the_minimum_of_the_penalised_loss() -> None:
    """At the minimum the gradient in the scaled weights vanishes."""
    states, labels = _separated()
    penalty = 1e-2
    weight = fit_logistic(states, labels, penalty=penalty).double()
    scale = states.double().square().mean(0).sqrt()
    scaled_weight, scaled = weight * scale, states.double() / scale
    residual = torch.sigmoid(scaled @ scaled_weight) - labels.double()
    gradient = scaled.T @ residual / len(labels) + penalty * scaled_weight
    assert gradient.abs().max() < 1e-4


def test_fit_is_deterministic_and_has_no_bias() -> None:
    states, labels = _separated()
    weight = fit_logistic(states, labels, penalty=1e-3)
    assert torch.equal(weight, fit_logistic(states, labels, penalty=1e-3))
    assert weight.shape == (states.shape[1],)
    assert auc(states @ weight, labels) > 0.9


def test_larger_penalty_gives_a_shorter_weight() -> None:
    states, labels = _separated()
    lengths = [
        float(
            (fit_logistic(states, labels, penalty=penalty) * states.square().mean(0).sqrt()).norm()
        )
        for penalty in (1e-4, 1e-2, 1.0)
    ]
    assert lengths == sorted(lengths, reverse=True)


def test_auc_counts_ordered_pairs() -> None:
    scores, labels = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert auc(scores, labels) == 0.75


def test_auc_without_a_class_is_one_half() -> None:
    assert auc(torch.rand(3), torch.ones(3)) == 0.5
    assert auc(torch.empty(0), torch.empty(0)) == 0.5


@given(
    st.lists(st.tuples(EIGHTHS, st.booleans()), min_size=1, max_size=30),
    EIGHTHS,
)
def test_f1_equals_its_definition(rows: list[tuple[float, bool]], threshold: float) -> None:
    scores = torch.tensor([score for score, _ in rows], dtype=torch.float64)
    labels = torch.tensor([float(label) for _, label in rows])
    true = sum(score >= threshold and label for score, label in rows)
    flagged = sum(score >= threshold for score, _ in rows)
    positive = sum(label for _, label in rows)
    f1, precision, recall = f1_over_thresholds(scores, labels, torch.tensor([threshold]).double())
    assert float(f1) == (2 * true / (flagged + positive) if flagged + positive else 0.0)
    assert float(precision) == (true / flagged if flagged else 0.0)
    assert float(recall) == (true / positive if positive else 0.0)


def test_best_threshold_separates_what_can_be_separated() -> None:
    scores, labels = torch.tensor([0.1, 0.2, 0.7, 0.9]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    best = best_threshold(scores, labels)
    assert (best.f1, best.precision, best.recall) == (1.0, 1.0, 1.0)
    assert 0.2 < best.value <= 0.7
