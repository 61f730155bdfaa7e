"""The plots of a probe: quality over layers (SwitchSD, Figure 5) and thresholds (Figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import roc_curve
from torch import Tensor

from drafters.training.logistic import auc, f1_over_thresholds, has_both_classes
from drafters.training.probe import Candidate
from engine.interfaces import Site
from engine.probe import Probe

_DOTS_PER_INCH = 80
"""Small files: the plots ship with the weights."""


def plot_layers(candidates: Sequence[Candidate], probe: Probe, path: Path) -> None:
    """F1 and AUC on the validation prompts over layers, both sites, at the probe's label shift."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    shown = [entry for entry in candidates if entry.label_shift == probe.label_shift]
    for site in Site:
        entries = sorted((e for e in shown if e.point[1] is site), key=lambda e: e.point[0])
        layers = [entry.point[0] for entry in entries]
        label = f"after {'attention' if site is Site.ATTENTION else 'MLP'}"
        left.plot(layers, [entry.threshold.f1 for entry in entries], label=label)
        right.plot(layers, [entry.auc for entry in entries], label=label)
    for axes, title in ((left, "F1"), (right, "ROC AUC")):
        axes.axvline(probe.layer, color="grey", linestyle=":")
        _finish(axes, "layer", f"validation {title}")
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def plot_threshold(sets: Mapping[str, tuple[Tensor, Tensor]], threshold: float, path: Path) -> None:
    """F1 over the threshold and the ROC curve, for every named set of (scores, labels).

    A set with labels of one class only, as tiny runs have, has no ROC curve.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    thresholds = torch.arange(1, 100, dtype=torch.float64) / 100
    for name, (scores, labels) in sets.items():
        f1, _, _ = f1_over_thresholds(scores.double(), labels, thresholds)
        left.plot(thresholds.tolist(), f1.tolist(), label=name)
        if has_both_classes(labels):
            false_positives, true_positives, _ = roc_curve(labels.numpy(), scores.numpy())
            label = f"{name}, AUC {auc(scores, labels):.3f}"
            right.plot(false_positives, true_positives, label=label)
    left.axvline(threshold, color="grey", linestyle=":")
    right.plot([0, 1], [0, 1], color="grey", linestyle=":", label="chance")
    _finish(left, "threshold", "F1")
    _finish(right, "false positive rate", "true positive rate")
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _finish(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
