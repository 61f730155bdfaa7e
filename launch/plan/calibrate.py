"""Fit the step-time model to this machine: time real passes, find the parameters behind them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from engine.models.config import ModelConfig
from launch.plan.machine import PARAMETERS, Machine, Parameter
from launch.plan.steptime import Layout, StepTimeModel

FIT_ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
FIT_CONTEXTS = (128, 512, 1024, 2048, 4096)
CHECK_ROWS = (1, 3, 6, 12, 24, 48, 80, 112, 128)
CHECK_CONTEXTS = (192, 768, 1536, 3072)
"""Points that the fit does not see."""

_START = {
    "memory_bandwidth": 1e10,
    "matmul_rate": 1e11,
    "attention_efficiency": 0.2,
    "overlap": 2.0,
    "layer_gap": 2e-5,
    "step_gap": 5e-4,
}
"""What is fitted, and where the search starts."""
_FIXED = {
    "memory_efficiency": 1.0,
    "matmul_efficiency": 1.0,
    "attention_launch": 0.0,
}
"""Without a data sheet, the rates are what kernels reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A pass and the seconds it took."""

    rows: int
    context: int
    seconds: float


def time_passes(
    run: Callable[[int, int], None],
    rows: Sequence[int],
    contexts: Sequence[int],
    *,
    repetitions: int = 7,
) -> list[Timing]:
    """Medians; the points take turns, so that a disturbance does not hit one of them alone."""
    points = [(count, context) for context in contexts for count in rows]
    samples: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    for _ in range(repetitions + 1):  # the first round warms up
        for point in points:
            started = time.perf_counter()
            run(*point)
            samples[point].append(time.perf_counter() - started)
    return [
        Timing(rows=count, context=context, seconds=statistics.median(times[1:]))
        for (count, context), times in samples.items()
    ]


def fit_machine(
    name: str, timings: Sequence[Timing], model: ModelConfig, *, layout: Layout, memory_size: float
) -> Machine:
    """The machine whose predictions are nearest: least squares of the logarithms."""

    def errors(logarithms: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
        machine = _machine(name, np.exp(logarithms).tolist(), memory_size)
        found = predictions(machine, timings, model, layout=layout)
        return [
            float(np.log(value / one.seconds)) for value, one in zip(found, timings, strict=True)
        ]

    start = np.log(list(_START.values()))
    lowest, highest = start - 9.0, start + 9.0
    lowest[3], highest[3] = np.log(1.0), np.log(12.0)  # a p-norm has p from 1 on
    result = least_squares(errors, start, bounds=(lowest, highest), loss="soft_l1", f_scale=0.1)
    return _machine(name, np.exp(result.x).tolist(), memory_size)


def predictions(
    machine: Machine, timings: Sequence[Timing], model: ModelConfig, *, layout: Layout
) -> list[float]:
    """Seconds of the same passes by the model."""
    steps = StepTimeModel(machine=machine, model=model, layout=layout)
    return [steps.cost(one.rows, context=one.context).total for one in timings]


def relative_errors(
    machine: Machine, timings: Sequence[Timing], model: ModelConfig, *, layout: Layout
) -> list[float]:
    """|prediction / measurement - 1| of every pass."""
    found = predictions(machine, timings, model, layout=layout)
    return [abs(value / one.seconds - 1.0) for value, one in zip(found, timings, strict=True)]


def _machine(name: str, fitted: Sequence[float], memory_size: float) -> Machine:
    values = dict(zip(_START, fitted, strict=True)) | _FIXED
    values |= {"matmul_rate_8bit": values["matmul_rate"], "memory_size": memory_size}
    return Machine(
        name=name,
        parameters={
            key: Parameter(
                value=values[key],
                unit=unit,
                origin="modelled" if key in _FIXED else "measured",
                source="python -m launch.plan calibrate",
            )
            for key, unit in PARAMETERS.items()
        },
        all_reduce={},
        all_reduce_origin="measured",
    )
