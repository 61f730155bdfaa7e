"""Multi-armed bandits: which arm to pull next, given what the others brought.

UCB1: Auer, Cesa-Bianchi and Fischer 2002, with a count of its own for every arm; EXP3: Auer et al.
2002. Rewards are from 0 to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import Protocol


class Bandit(Protocol):
    """One game."""

    def choose(self) -> int:
        """The next arm."""
        ...

    def observe(self, arm: int, reward: float) -> None:
        """What an arm brought."""
        ...


@dataclass(slots=True)
class UCB1:
    """Every arm once, then the arm with the highest mean + sqrt(2 ln t / n)."""

    num_arms: int
    counts: list[int] = field(init=False)
    """Pulls of each arm."""
    totals: list[float] = field(init=False)
    """Rewards of each arm."""

    def __post_init__(self) -> None:
        self.counts, self.totals = [0] * self.num_arms, [0.0] * self.num_arms

    def choose(self) -> int:
        """The first arm that was never pulled, else the most promising one."""
        if 0 in self.counts:
            return self.counts.index(0)
        log_pulls = math.log(sum(self.counts))
        return max(range(self.num_arms), key=lambda arm: self._bound(arm, log_pulls))

    def _bound(self, arm: int, log_pulls: float) -> float:
        count = self.counts[arm]
        return self.totals[arm] / count + math.sqrt(2.0 * log_pulls / count)

    def observe(self, arm: int, reward: float) -> None:
        """Count it."""
        self.counts[arm] += 1
        self.totals[arm] += reward


@dataclass(slots=True)
class EXP3:
    """Arms are drawn by exponential weights, mixed with ``exploration`` of uniform chance."""

    num_arms: int
    exploration: float = 0.1
    random: Random = field(default_factory=lambda: Random(0))
    log_weights: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.log_weights = [0.0] * self.num_arms

    @property
    def probabilities(self) -> list[float]:
        """Of all arms."""
        highest = max(self.log_weights)
        weights = [math.exp(weight - highest) for weight in self.log_weights]
        chance, total = self.exploration / self.num_arms, sum(weights)
        return [(1.0 - self.exploration) * weight / total + chance for weight in weights]

    def choose(self) -> int:
        """A draw."""
        return self.random.choices(range(self.num_arms), self.probabilities)[0]

    def observe(self, arm: int, reward: float) -> None:
        """Rewards count the more, the rarer the arm is drawn, so that each is judged fairly."""
        estimate = reward / self.probabilities[arm]
        self.log_weights[arm] += self.exploration * estimate / self.num_arms
