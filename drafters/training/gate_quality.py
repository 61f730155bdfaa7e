"""How well a gate does: whether it knows which copies pay, and whether its promises are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from drafters.training.benefit import Flags, Floats, Integers, copy_steps
from drafters.training.capture import Transcript
from drafters.training.probe import BENEFIT_TOKENS
from engine.copy_source import MatchRule
from engine.gate import Gate
from engine.metrics import roc_auc
from engine.rated_copies import MAX_NODES, CopyRater


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatedSteps:
    """S steps with a match: what the gate promised and what came true."""

    first: Floats
    """[S]: the chance that the first token is right."""
    pays: Floats
    """[S]: the chance that ``BENEFIT_TOKENS`` or more are right."""
    expected: Floats
    """[S]: expected accepted tokens."""
    gained: Integers
    """[S]: accepted tokens."""
    is_visited: Flags
    """[S]: whether a step of the random walk began there."""

    def __add__(self, other: RatedSteps) -> RatedSteps:
        """Both together."""
        return RatedSteps(
            first=np.concatenate([self.first, other.first]),
            pays=np.concatenate([self.pays, other.pays]),
            expected=np.concatenate([self.expected, other.expected]),
            gained=np.concatenate([self.gained, other.gained]),
            is_visited=np.concatenate([self.is_visited, other.is_visited]),
        )

    def visited(self) -> RatedSteps:
        """Only the steps of the random walk: what a gate is asked about, and harder."""
        kept = self.is_visited
        return RatedSteps(
            first=self.first[kept],
            pays=self.pays[kept],
            expected=self.expected[kept],
            gained=self.gained[kept],
            is_visited=self.is_visited[kept],
        )

    def benefit_auc(self) -> float | None:
        """Of ``pays`` as a predictor of ``BENEFIT_TOKENS`` accepted tokens or more."""
        return roc_auc(self.pays.tolist(), (self.gained >= BENEFIT_TOKENS).tolist())

    def reliability(self, num_bins: int = 10) -> list[tuple[float, float, int]]:
        """(mean promise, share that came true, steps) of first tokens, in bins of equal width."""
        bins = np.minimum((self.first * num_bins).astype(int), num_bins - 1)
        return [
            (
                float(self.first[bins == index].mean()),
                float((self.gained[bins == index] > 0).mean()),
                int((bins == index).sum()),
            )
            for index in range(num_bins)
            if (bins == index).any()
        ]

    def calibration_error(self) -> float:
        """Mean distance of promise and truth of first tokens over the bins, by their steps."""
        table = self.reliability()
        total = sum(count for _, _, count in table)
        return sum(abs(promise - truth) * count for promise, truth, count in table) / max(total, 1)


def rate_steps(
    gate: Gate,
    transcripts: Sequence[Transcript],
    logits: Sequence[Sequence[float]] | None,
    *,
    seed: int = 0,
) -> RatedSteps:
    """The gate's ratings of every step with a match.

    ``logits`` holds the probe's logit of every captured row by transcript; None: the blind model.
    """
    rule = MatchRule()
    rater = CopyRater(
        gate.model(has_probe=logits is not None), max_tokens=rule.max_tokens, max_nodes=MAX_NODES
    )
    first, pays, expected, gained, visited = [], [], [], [], []
    for step in copy_steps(transcripts, seed=seed, rule=rule):
        situation = step.situation
        if logits is not None:
            situation = replace(situation, probe_logit=logits[step.transcript][step.row])
        rated = rater.rate(situation, step.matches)
        first.append(rated.first_token)
        pays.append(rated.pays)
        expected.append(rated.expected_tokens)
        gained.append(step.gained)
        visited.append(step.is_visited)
    return RatedSteps(
        first=np.array(first),
        pays=np.array(pays),
        expected=np.array(expected),
        gained=np.array(gained, dtype=np.int64),
        is_visited=np.array(visited, dtype=np.bool_),
    )
