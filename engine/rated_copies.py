"""The likeliest part of a copy trie: opened node by node, the likeliest first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.copy_source import CopyMatch
from engine.copy_trie import Branch, branches
from engine.gate import CopyModel, sigmoid
from engine.gate_features import (
    Above,
    CopyCalibration,
    Situation,
    common_features,
    first_features,
    node_features,
)

_MOST_BRANCHES = 1_000
MAX_NODES = 128
"""Copied rows of a step at most."""
MIN_PROBABILITY = 0.003
"""Nodes that are reached more rarely are never opened: no row is that cheap."""


@dataclass(frozen=True, slots=True)
class RatedCopies:
    """Nodes in the order of falling probability, parents before their children."""

    candidates: tuple[tuple[int, ...], ...] = ()
    """The paths that no other one goes on from, the most expected tokens first."""
    ratings: tuple[tuple[float, ...], ...] = ()
    """The chance of each candidate to be accepted up to each of its tokens."""
    probabilities: tuple[float, ...] = ()
    """Of all nodes, falling."""
    first_token: float = 0.0
    """The chance that any token is accepted."""
    match_length: int = 0
    pays: float = 0.0
    """The chance that three tokens or more are accepted."""

    @property
    def expected_tokens(self) -> float:
        """Expected accepted tokens when every node is verified."""
        return sum(self.probabilities)


class _Open(NamedTuple):
    """A node that waits; the heap's smallest is the likeliest."""

    negative_probability: float
    order: int
    """Unique, so that nothing behind it is compared."""
    branch: Branch
    path: tuple[int, ...]
    ratings: tuple[float, ...]
    common_logit: float
    """Of everything below its first-level branch."""


class CopyRater:
    """Rates what could be copied, by one model."""

    def __init__(
        self,
        model: CopyModel,
        *,
        max_tokens: int,
        max_nodes: int,
        min_probability: float = MIN_PROBABILITY,
        calibration: CopyCalibration | None = None,
    ) -> None:
        """Nodes that are reached with less than ``min_probability`` are left closed."""
        self._model, self._max_tokens, self._max_nodes = model, max_tokens, max_nodes
        self._min_probability = max(min_probability, MIN_PROBABILITY)
        self._calibration = calibration or CopyCalibration()

    def rate(self, situation: Situation, matches: Sequence[CopyMatch]) -> RatedCopies:
        """At most ``max_nodes`` nodes of paths of at most ``max_tokens`` tokens."""
        found = branches(situation.token_ids, matches, 0)
        if not found:
            return RatedCopies()
        logits, pays = self._model.first_level(np.array(first_features(situation, found)))
        waiting = self._first_level(situation, found, logits, pays)
        first_token = -sum(one.negative_probability for one in waiting)
        opened: dict[tuple[int, ...], tuple[float, ...]] = {}
        probabilities: list[float] = []
        while waiting and len(probabilities) < self._max_nodes:
            node = heapq.heappop(waiting)
            opened.pop(node.path[:-1], None)
            opened[node.path] = node.ratings
            probabilities.append(-node.negative_probability)
            if len(node.path) < self._max_tokens:
                for child in self._children(situation, node, len(probabilities)):
                    heapq.heappush(waiting, child)
        best_first = sorted(opened.items(), key=lambda item: -sum(item[1]))
        return RatedCopies(
            candidates=tuple(path for path, _ in best_first),
            ratings=tuple(ratings for _, ratings in best_first),
            probabilities=tuple(probabilities),
            first_token=min(first_token, 1.0),
            match_length=max(match.length for match in matches),
            pays=sigmoid(pays),
        )

    def _first_level(
        self, situation: Situation, found: Sequence[Branch], logits: Sequence[float], pays: float
    ) -> list[_Open]:
        chances = [sigmoid(one + self._calibration.first) for one in logits]
        total = max(1.0, sum(chances))
        waiting = []
        for index, (branch, chance, first) in enumerate(zip(found, chances, logits, strict=True)):
            rating = chance / total
            if rating >= self._min_probability:
                common = self._common_logit(situation, Above(first=first, pays=pays))
                path = (branch.token_id,)
                waiting.append(_Open(-rating, index, branch, path, (rating,), common))
        heapq.heapify(waiting)
        return waiting

    def _common_logit(self, situation: Situation, above: Above) -> float:
        features = common_features(situation.recent, above)
        return self._model.common_logit(features) + self._calibration.further

    def _children(self, situation: Situation, node: _Open, count: int) -> list[_Open]:
        depth = len(node.path)
        found = branches(situation.token_ids, node.branch.matches, depth)
        children = []
        for index, branch in enumerate(found):
            features = node_features(branch, found, depth)
            chance = node.ratings[-1] * self._model.node_probability(features, node.common_logit)
            if chance >= self._min_probability:
                path, ratings = (*node.path, branch.token_id), (*node.ratings, chance)
                order = count * _MOST_BRANCHES + index
                children.append(_Open(-chance, order, branch, path, ratings, node.common_logit))
        return children
