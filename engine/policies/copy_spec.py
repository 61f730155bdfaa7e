"""CopySpec (RazvanDu/CopySpec, 2025): copy whenever the last gamma tokens occurred before.

The paper's gamma is our match length (3), its number_copy the draft length (10); the earliest
occurrence is used. Without a match the fallback drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.interfaces import Drafter
from engine.policies.vanilla import Vanilla
from engine.records import CopyIndexShape, Draft, SequenceView


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySpec:
    """One candidate: what followed the earliest occurrence of the match."""

    match_length: int = 3
    max_tokens: int = 10
    fallback: Drafter = field(default_factory=Vanilla)
    name: str = "copy_spec"
    reads_probe: bool = False

    @property
    def copy_index(self) -> CopyIndexShape:
        """One match length."""
        return CopyIndexShape(match_lengths=(self.match_length,), max_tokens=self.max_tokens)

    def draft(self, view: SequenceView) -> Draft:
        """Copy on any match, else ask the fallback."""
        continuation = view.copies.earliest(
            match_length=self.match_length, max_tokens=self.max_tokens
        )
        if not continuation:
            return self.fallback.draft(view)
        return Draft(source="copy", candidates=(continuation,), match_length=self.match_length)
