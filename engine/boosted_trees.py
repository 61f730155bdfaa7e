"""Gradient-boosted trees for a binary outcome: evaluation only, a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoostedTrees:
    """T trees of at most N nodes; the logit of a row is the prior plus one leaf of each tree.

    A row goes left at a node when its feature is at most the threshold. A leaf is its own child, so
    that all trees are walked to the same depth.
    """

    prior: float
    """Logit before any tree."""
    features: Integers
    """[T, N]."""
    thresholds: Floats
    """[T, N]."""
    children: Integers
    """[2, T, N]: left and right."""
    values: Floats
    """[T, N]: what a leaf adds to the logit."""
    depth: int

    def __post_init__(self) -> None:
        shape = self.features.shape
        if not (self.thresholds.shape == self.values.shape == self.children.shape[1:] == shape):
            raise ValueError("the arrays of boosted trees must have one shape")
        if self.children.size and not 0 <= self.children.min() <= self.children.max() < shape[1]:
            raise ValueError("a child of a boosted tree's node must be one of its nodes")

    @property
    def num_features(self) -> int:
        """Features that a row must have at least."""
        return int(self.features.max(initial=-1)) + 1

    def logits(self, rows_RF: Floats) -> Floats:
        """[R, F] -> [R]."""
        trees = np.arange(len(self.features))
        nodes_RT = np.zeros((len(rows_RF), len(trees)), dtype=np.int64)
        index_R1 = np.arange(len(rows_RF))[:, None]
        for _ in range(self.depth):
            values_RT = rows_RF[index_R1, self.features[trees, nodes_RT]]
            goes_right = (values_RT > self.thresholds[trees, nodes_RT]).astype(np.int64)
            nodes_RT = self.children[goes_right, trees, nodes_RT]
        found: Floats = self.prior + self.values[trees, nodes_RT].sum(axis=1)
        return found
