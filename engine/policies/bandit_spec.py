"""BanditSpec (Hou et al. 2025, sail-sg/BanditSpec): a bandit learns per request who should draft.

Each step pulls an arm, runs one draft and one pass, and rewards the arm. The arms here are copying
and neural drafts of several lengths; without a drafter, copies of several lengths and a plain step.
Copying without a match is an empty step that counts as the arm's pull. The released code divides by
one count for all arms, which leaves no exploration; here every arm has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from engine.bandits import Bandit
from engine.interfaces import Chooser
from engine.records import (
    Choice,
    CopyIndexShape,
    Draft,
    NeuralWish,
    SequenceView,
    VerifiedStep,
    copied,
)


class Arm(NamedTuple):
    """What a pull does."""

    kind: Literal["copy", "neural", "plain"]
    max_tokens: int = 0


Reward = Callable[[VerifiedStep], float]
"""From what a step did to a number; larger is better."""


def tokens_of(step: VerifiedStep) -> float:
    """Output tokens of the pass."""
    return float(step.record.output)


def rate_of(step: VerifiedStep) -> float:
    """Output tokens per millisecond of drafting and verifying."""
    record = step.record
    return record.output / max(record.draft_ms + record.verify_ms, 1e-6)


def arms(*, copy_tokens: int, neural_tokens: int) -> tuple[Arm, ...]:
    """Copying, and neural drafts of half and full length; 0 ``neural_tokens``: no drafter."""
    if neural_tokens:
        lengths = sorted({max(1, neural_tokens // 2), neural_tokens})
        return (Arm("copy", copy_tokens), *(Arm("neural", length) for length in lengths))
    lengths = sorted({max(1, copy_tokens // 4), copy_tokens})
    return (*(Arm("copy", length) for length in lengths), Arm("plain"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditSpec:
    """Which game is played, over which arms."""

    new_bandit: Callable[[int], Bandit]
    """From the number of arms to a fresh game."""
    arms: tuple[Arm, ...]
    reward: Reward
    match_length: int = 5
    max_candidates: int = 10
    name: str = "bandit_spec"

    @property
    def copy_index(self) -> CopyIndexShape:
        """One match length."""
        longest = max(arm.max_tokens for arm in self.arms if arm.kind == "copy")
        return CopyIndexShape(match_lengths=(self.match_length,), max_tokens=longest)

    def begin(self) -> Chooser:
        """Nothing is known of a new request."""
        return BanditChooser(self, self.new_bandit(len(self.arms)))


@dataclass(slots=True)
class BanditChooser:
    """One request's game."""

    policy: BanditSpec
    bandit: Bandit
    _arm: int | None = None
    _highest: float = field(default=0.0, init=False)
    """The best reward yet, which counts as 1."""

    def choose(self, view: SequenceView) -> Choice:
        """Pull an arm."""
        self._arm = self.bandit.choose()
        arm = self.policy.arms[self._arm]
        match arm.kind:
            case "neural":
                return NeuralWish(max_tokens=arm.max_tokens)
            case "copy":
                return self._copy(view, arm.max_tokens)
        return Draft()

    def _copy(self, view: SequenceView, max_tokens: int) -> Draft:
        candidates = view.copies.continuations(
            match_length=self.policy.match_length,
            max_candidates=self.policy.max_candidates,
            max_tokens=max_tokens,
        )
        if not candidates:
            return Draft(reason="no_match")
        return copied(candidates, match_length=self.policy.match_length)

    def observe(self, step: VerifiedStep) -> None:
        """Reward the arm; a step that was not its pull (no room to draft) counts for none."""
        if self._arm is None:
            return
        reward = self.policy.reward(step)
        self._highest = max(self._highest, reward)
        self.bandit.observe(self._arm, reward / self._highest if self._highest else 0.0)
        self._arm = None
