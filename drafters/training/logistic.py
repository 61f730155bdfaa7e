"""Logistic regression through the origin, and how well a score separates two classes.

No bias and no centring, because the probe is σ(wᵀH). Each dimension is divided by its root mean
square for the fit and the division is folded into w afterwards: residual streams have a few
dimensions that are a thousand times larger than the rest, and an L2 penalty on raw weights would
see only those.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A threshold on a score and what it achieves."""

    value: float
    f1: float
    precision: float
    recall: float


def fit_logistic(
    states_NH: Tensor, labels_N: Tensor, *, penalty: float, max_iterations: int = 200
) -> Tensor:
    """Weight [H] float32 that minimises mean cross-entropy + penalty/2 · ‖w · rms(H)‖².

    ``states_NH`` float32, ``labels_N`` float32 of 0 and 1; deterministic: LBFGS from zero.
    """
    scale_H = states_NH.square().mean(dim=0).sqrt().clamp_min(1e-6)
    scaled_NH = states_NH / scale_H
    weight_H = torch.zeros(states_NH.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight_H],
        max_iter=max_iterations,
        history_size=20,
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(scaled_NH @ weight_H, labels_N)
        loss = loss + 0.5 * penalty * weight_H.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight_H.detach() / scale_H


def has_both_classes(labels_N: Tensor) -> bool:
    """Whether labels (positive above 0.5) of both classes occur."""
    return 0 < int((labels_N > 0.5).sum()) < len(labels_N)


def auc(scores_N: Tensor, labels_N: Tensor) -> float:
    """Area under the ROC curve; 0.5 when a class is missing."""
    if not has_both_classes(labels_N):
        return 0.5
    return float(roc_auc_score(labels_N.numpy(), scores_N.numpy()))


def f1_over_thresholds(
    scores_N: Tensor, labels_N: Tensor, thresholds_T: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """F1, precision and recall [T] of the rule ``score >= threshold``, all float64."""
    positive = labels_N > 0.5
    order = scores_N[positive].sort().values
    everything = scores_N.sort().values
    hits = len(order) - torch.searchsorted(order, thresholds_T.to(order.dtype))
    flagged = len(everything) - torch.searchsorted(everything, thresholds_T.to(order.dtype))
    hits_T, flagged_T = hits.double(), flagged.double()
    f1_T = 2 * hits_T / (flagged_T + len(order)).clamp_min(1)
    return f1_T, hits_T / flagged_T.clamp_min(1), hits_T / max(len(order), 1)


def best_threshold(scores_N: Tensor, labels_N: Tensor) -> Threshold:
    """The threshold in steps of 1/200 with the highest F1; the lowest one on a tie."""
    thresholds = torch.arange(1, 200, dtype=torch.float64) / 200
    f1, precision, recall = f1_over_thresholds(scores_N.double(), labels_N, thresholds)
    best = int(f1.argmax())
    return Threshold(
        value=float(thresholds[best]),
        f1=float(f1[best]),
        precision=float(precision[best]),
        recall=float(recall[best]),
    )
