"""What is written about a trained probe: its file, provenance, report and plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from drafters.training.gate import GateReplay
from drafters.training.logistic import f1_over_thresholds
from drafters.training.probe import (
    BENEFIT_TOKENS,
    Candidate,
    labelled_scores,
    quality,
)
from engine.probe import save_probe
from launch.data.copy_diversity import CopyGroup
from launch.probe_plots import plot_layers, plot_threshold
from launch.probe_training import ProbeResult


def write_probe(result: ProbeResult, origin: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write the probe, its provenance, its report and two plots; return the summary.

    ``origin`` is the run's provenance, taken when it started: the checkout may change meanwhile.
    """
    save_probe(result.probe, folder / "probe.safetensors")
    summary = _summary(result)
    _write_json(folder / "probe.json", {**origin, **summary})
    _write_json(folder / "probe_report.json", {**summary, **_details(result)})
    plot_layers(result.swept, result.probe, folder / "probe_layers.png")
    validation = labelled_scores(result.probe, result.captured, _validation_rows(result))
    held_out = labelled_scores(result.probe, result.held_out)
    plot_threshold(
        {"validation": validation, "HumanEval": held_out},
        result.probe.threshold,
        folder / "probe_threshold.png",
    )
    return summary


def _summary(result: ProbeResult) -> dict[str, Any]:
    """The probe, its data and its quality."""
    probe, validation = result.probe, _validation_rows(result)
    return {
        "probe": {
            "model": probe.model_id,
            "layer": probe.layer,
            "site": probe.site.value,
            "threshold": probe.threshold,
            "label_shift": probe.label_shift,
            "penalty": result.refined[0].penalty,
            "gate_thresholds": result.probe.gate_thresholds,
        },
        "data": {
            "prompts": len(result.prompts),
            "validation_prompts": int(result.validation.sum()),
            "generated_tokens": sum(len(entry.output_ids) for entry in result.transcripts),
            "humaneval_tokens": result.num_held_out_tokens,
        },
        "quality": {
            "training": asdict(quality(probe, result.captured, ~validation)),
            "validation": asdict(quality(probe, result.captured, validation)),
            "humaneval": asdict(quality(probe, result.held_out)),
        },
        "benefit_tokens": BENEFIT_TOKENS,
    }


def _details(result: ProbeResult) -> dict[str, Any]:
    """Every fit, quality by group of prompts, and the curve over thresholds."""
    scores, labels = labelled_scores(result.probe, result.captured, _validation_rows(result))
    thresholds = torch.arange(1, 100, dtype=torch.float64) / 100
    f1, precision, recall = f1_over_thresholds(scores.double(), labels, thresholds)
    return {
        "sweep": _rows(result.swept),
        "refined": _rows(result.refined),
        "gate_on_validation": {
            length: {"always": _gate_row(always), "calibrated": _gate_row(chosen)}
            for length, (always, chosen) in result.gate.items()
        },
        "validation_by_group": {
            group.value: asdict(quality(result.probe, result.captured, rows))
            for group in CopyGroup
            if (rows := _validation_rows(result) & _group_rows(result, group)).any()
        },
        "validation_thresholds": {
            "threshold": thresholds.tolist(),
            "f1": _rounded(f1.tolist()),
            "precision": _rounded(precision.tolist()),
            "recall": _rounded(recall.tolist()),
        },
    }


def _rows(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    return [
        {
            "layer": candidate.point[0],
            "site": candidate.point[1].value,
            "label_shift": candidate.label_shift,
            "penalty": candidate.penalty,
            "auc": round(candidate.auc, 5),
            "f1": round(candidate.threshold.f1, 5),
            "threshold": candidate.threshold.value,
        }
        for candidate in candidates
    ]


def _gate_row(outcome: GateReplay) -> dict[str, Any]:
    return {**asdict(outcome), "empty_share": round(outcome.empty_share, 5)}


def _validation_rows(result: ProbeResult) -> torch.Tensor:
    return result.validation[result.captured.transcripts]


def _group_rows(result: ProbeResult, group: CopyGroup) -> torch.Tensor:
    of_group = torch.tensor([prompt.group is group for prompt in result.prompts])
    return of_group[result.captured.transcripts]


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 5) for value in values]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, default=str) + "\n")
