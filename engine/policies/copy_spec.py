"""CopySpec (RazvanDu/CopySpec, 2025): copy whenever the last gamma tokens occurred before.

The paper's gamma is our match length (3), its number_copy the draft length (10); the earliest
occurrence is used. Without a match the fallback drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.policies.fallback import NO_DRAFTER, Fallback
from engine.policies.stateless import Stateless
from engine.records import Choice, CopyIndexShape, SequenceView, copied


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySpec(Stateless):
    """One candidate: what followed the earliest occurrence of the match."""

    match_length: int = 3
    max_tokens: int = 10
    fallback: Fallback = NO_DRAFTER
    name: str = "copy_spec"

    @property
    def copy_index(self) -> CopyIndexShape:
        """One match length."""
        return CopyIndexShape(match_lengths=(self.match_length,), max_tokens=self.max_tokens)

    def choose(self, view: SequenceView) -> Choice:
        """Copy on any match, else ask the fallback."""
        continuation = view.copies.earliest(
            match_length=self.match_length, max_tokens=self.max_tokens
        )
        if not continuation:
            return self.fallback.choose("no_match")
        return copied((continuation,), match_length=self.match_length)
