"""Does a sample come from a distribution: chi-square over pooled cells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

ALARM = 1e-6
"""Probability of a false alarm of one test: a fixed seed never alarms, a wrong rule always does."""

_FEW = 10.0
"""Cells that expect fewer are pooled."""


def p_value(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """Of the hypothesis that ``counts`` were drawn from ``probabilities``; same shape both.

    A sample in an impossible cell gives 0.
    """
    expected = probabilities.ravel() * counts.sum()
    observed = counts.ravel().astype(np.float64)
    if observed[expected == 0].any():
        return 0.0
    large = expected >= _FEW
    pooled_expected = np.append(expected[large], expected[~large].sum())
    pooled_observed = np.append(observed[large], observed[~large].sum())
    kept = pooled_expected > 0
    return float(stats.chisquare(pooled_observed[kept], pooled_expected[kept]).pvalue)
