"""What is written about a trained gate: its file, provenance with quality, reliability plot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from drafters.training.gate_quality import RatedSteps
from drafters.training.probe import BENEFIT_TOKENS
from engine.gate import save_gate
from launch.gate_training import GateResult

_DOTS_PER_INCH = 80


def write_gate(result: GateResult, origin: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write the gate, what it was made from and how well it does; returns the summary."""
    save_gate(result.gate, folder / "gate.safetensors")
    summary = {
        "probe": {
            "layer": result.gate.probe.layer,
            "site": result.gate.probe.site.value,
            "validation_auc_by_layer": {str(k): v for k, v in result.probe_aucs.items()},
        },
        "data": {
            "steps": len(result.data.accepted),
            "branches": len(result.data.first),
            "share_that_pays": float(np.mean(result.data.pays)),
            "benefit_tokens": BENEFIT_TOKENS,
        },
        "quality": {name: _quality(steps) for name, steps in result.informed.items()},
        "quality_without_probe": {name: _quality(steps) for name, steps in result.blind.items()},
    }
    text = json.dumps({**origin, **summary}, indent=1, default=str)
    (folder / "gate.json").write_text(f"{text}\n", encoding="utf-8")
    plot_reliability(result.informed, folder / "gate_reliability.png")
    return summary


def _quality(steps: RatedSteps) -> dict[str, float | int | None]:
    return {
        "steps": len(steps.gained),
        "benefit_auc": steps.benefit_auc(),
        "benefit_auc_visited": steps.visited().benefit_auc(),
        "calibration_error": steps.calibration_error(),
        "mean_expected": float(np.mean(steps.expected)),
        "mean_accepted": float(np.mean(steps.gained)),
    }


def plot_reliability(rated: Mapping[str, RatedSteps], path: Path) -> None:
    """How often first tokens came true against the promise, and accepted against expected."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color="grey", linestyle=":")
    for name, steps in rated.items():
        table = steps.reliability()
        auc = steps.benefit_auc()
        label = name if auc is None else f"{name}, AUC {auc:.3f}"
        left.plot([row[0] for row in table], [row[1] for row in table], marker="o", label=label)
        expected, accepted = _by_expectation(steps)
        right.plot(expected, accepted, marker="o", label=name)
    right.plot([0, 20], [0, 20], color="grey", linestyle=":")
    for axes, x_label, y_label in (
        (left, "promised chance of the first token", "share that was right"),
        (right, "expected accepted tokens", "accepted tokens"),
    ):
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _by_expectation(steps: RatedSteps, num_parts: int = 8) -> tuple[list[float], list[float]]:
    """Mean expectation and outcome of parts of equal size, by rising expectation."""
    order = np.argsort(steps.expected)
    parts = [part for part in np.array_split(order, num_parts) if len(part)]
    return (
        [float(steps.expected[part].mean()) for part in parts],
        [float(steps.gained[part].mean()) for part in parts],
    )
