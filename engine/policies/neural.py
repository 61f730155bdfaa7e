"""One neural drafter, always: EAGLE-3, a small model, a steered one or Medusa alone."""

from __future__ import annotations

from dataclasses import dataclass

from engine.policies.fallback import Fallback
from engine.policies.stateless import Stateless
from engine.records import Choice, CopyIndexShape, SequenceView


@dataclass(frozen=True, slots=True, kw_only=True)
class AlwaysNeural(Stateless):
    """Asks the drafter at every step."""

    name: str
    fallback: Fallback

    @property
    def copy_index(self) -> CopyIndexShape:
        """Nothing is copied."""
        return CopyIndexShape(match_lengths=(), max_tokens=1)

    def choose(self, view: SequenceView) -> Choice:  # noqa: ARG002 - the protocol's signature
        """The wish for a draft."""
        return self.fallback.choose("always")
