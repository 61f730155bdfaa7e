"""The plots of a probe, also of the tiny sets that quick runs have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from launch.probe_plots import plot_threshold


@pytest.mark.parametrize("labels", [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
def test_sets_of_one_class_are_plotted_without_a_roc_curve(
    tmp_path: Path, labels: list[float]
) -> None:
    path = tmp_path / "plot.png"
    sets = {"validation": (torch.tensor([0.2, 0.5, 0.9]), torch.tensor(labels))}
    plot_threshold(sets, 0.5, path)
    assert path.read_bytes().startswith(b"\x89PNG")
