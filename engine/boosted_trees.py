"""Gradient-boosted trees for a binary outcome: evaluation only, a few rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
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
        (found,) = Forest((self,)).logits(rows_RF)
        return found


class Forest:
    """Several models of the same rows, walked at once: for a few rows, numpy's calls cost most."""

    def __init__(self, models: Sequence[BoostedTrees]) -> None:
        """Their nodes lie one behind the other."""
        self._priors = [model.prior for model in models]
        self._depth = max(model.depth for model in models)
        self._features = np.concatenate([model.features.ravel() for model in models])
        self._thresholds = np.concatenate([model.thresholds.ravel() for model in models])
        self._values = np.concatenate([model.values.ravel() for model in models])
        starts = np.cumsum([0, *(model.features.size for model in models)])
        pairs = list(zip(models, starts.tolist(), strict=False))
        self._roots = np.concatenate([_roots(model, start) for model, start in pairs])
        self._children = np.concatenate([_children(model, start) for model, start in pairs])
        self._bounds = np.cumsum([0, *(len(model.features) for model in models)]).tolist()

    def logits(self, rows_RF: Floats) -> list[Floats]:
        """[R, F] -> [R] of every model."""
        num_rows, num_features = rows_RF.shape
        values, first = rows_RF.ravel(), num_features * np.arange(num_rows)[:, None]
        nodes_RT = np.broadcast_to(self._roots, (num_rows, len(self._roots)))
        for _ in range(self._depth):
            seen_RT = values.take(self._features.take(nodes_RT) + first)
            goes_right_RT = seen_RT > self._thresholds.take(nodes_RT)
            nodes_RT = self._children.take(2 * nodes_RT + goes_right_RT)
        leaves_RT = self._values.take(nodes_RT)
        spans = zip(self._priors, self._bounds, self._bounds[1:], strict=False)
        return [prior + leaves_RT[:, start:end].sum(axis=1) for prior, start, end in spans]


def _roots(model: BoostedTrees, start: int) -> Integers:
    """[T]: where the trees begin, when the model's first node has the number ``start``."""
    num_trees, num_nodes = model.features.shape
    return np.arange(start, start + num_trees * num_nodes, num_nodes)


def _children(model: BoostedTrees, start: int) -> Integers:
    """[2 T N]: left and right child of every node in turn, numbered the same way."""
    found_2TN = model.children + _roots(model, start)[:, None]
    return np.moveaxis(found_2TN, 0, -1).ravel()
