"""Drafters that try to make verification go wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.policies.stateless import Stateless
from engine.records import CopyIndexShape, Draft, SequenceView


@dataclass(slots=True, kw_only=True)
class Adversary(Stateless):
    """A policy whose candidates come from a knowing or a malicious source."""

    kind: str
    """right, wrong, duplicates, random or mixed."""
    answers: Mapping[str, Sequence[int]]
    """The true output of every request, which 'right', 'wrong' and 'mixed' use."""
    vocab_size: int
    num_candidates: int = 3
    num_tokens: int = 5
    name: str = "adversary"
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def copy_index(self) -> CopyIndexShape:
        """Nothing is copied."""
        return CopyIndexShape(match_lengths=(), max_tokens=1)

    def choose(self, view: SequenceView) -> Draft:
        """Candidates of the chosen kind."""
        return Draft(source="copy", candidates=tuple(self._candidates(view)), match_length=1)

    def _candidates(self, view: SequenceView) -> list[tuple[int, ...]]:
        truth = self._truth(view)
        wrong = tuple((token + 1) % self.vocab_size for token in truth)
        noise = [tuple(self._random.randrange(self.vocab_size) for _ in truth) for _ in range(9)]
        match self.kind:
            case "right":
                return [truth]
            case "wrong":
                return [wrong]
            case "duplicates":
                return [truth[:2], truth, truth, wrong, wrong, truth[:1]][: 2 * self.num_candidates]
            case "random":
                return noise[: self.num_candidates]
        cut = self._random.randrange(len(truth) + 1)
        return [truth[:cut] + wrong[cut:], *noise[: self.num_candidates - 1]]

    def _truth(self, view: SequenceView) -> tuple[int, ...]:
        answer = self.answers[view.request_id]
        produced = self._num_produced(view, answer)
        truth = tuple(answer[produced : produced + self.num_tokens])
        return truth + (0,) * (self.num_tokens - len(truth))

    @staticmethod
    def _num_produced(view: SequenceView, answer: Sequence[int]) -> int:
        """One of the remaining tokens is the verifier's own, hence the one added here."""
        return len(answer) - (view.max_draft_tokens + 1)
