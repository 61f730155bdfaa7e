"""Bars for reading a table at a glance: tokens per second, and tokens per verifier pass."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from launch.bench.tables import Cell, groups

_Value = Callable[[Cell], float]
_COLORS = {"switchsteer": "#3b6fb6", "transformers": "#c98a2b", "vllm": "#7a9a3a"}


def write_plots(cells: Sequence[Cell], directory: Path) -> None:
    """``tokens_per_second.png`` and ``tokens_per_pass.png``, one panel per group of settings."""
    _write(cells, directory / "tokens_per_second.png", "tokens per second (decoding, macro)", _rate)
    _write(cells, directory / "tokens_per_pass.png", "output tokens per verifier pass", _per_pass)


def _rate(cell: Cell) -> float:
    return float(cell["tokens_per_second"]["macro"] or 0.0)


def _per_pass(cell: Cell) -> float:
    return float(cell["block_efficiency"] or 0.0)


def _write(cells: Sequence[Cell], file: Path, label: str, value: _Value) -> None:
    panels = groups(cells)
    if not panels:
        return
    heights = [0.6 + 0.35 * len(group) for _, group in panels]
    figure = Figure(figsize=(8, sum(heights) + 0.6 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for (title, group), axis in zip(panels, axes[:, 0], strict=True):
        _bars(axis, title, group, value)
        axis.set_xlabel(label)
    figure.savefig(file, dpi=120)


def _bars(axis: Axes, title: str, cells: Sequence[Cell], value: _Value) -> None:
    labels = [str(cell["label"]) for cell in cells]
    values = [value(cell) for cell in cells]
    colors = [_COLORS.get(str(cell["system"]), "#888888") for cell in cells]
    bars = axis.barh(labels, values, color=colors)
    axis.bar_label(bars, fmt="%.2f", padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_title(textwrap.fill(title, 120), fontsize=7, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
