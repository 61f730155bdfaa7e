"""One neural drafter, always: EAGLE-3, a small model or a steered one alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.interfaces import Drafter
from engine.records import CopyIndexShape, Draft, SequenceView


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedDrafter:
    """Asks for drafts of at most ``num_tokens``: methods that share a drafter differ in length."""

    drafter: Drafter
    num_tokens: int

    def draft(self, view: SequenceView) -> Draft:
        """The drafter's draft of the limited length."""
        limit = min(view.max_draft_tokens, self.num_tokens)
        return self.drafter.draft(replace(view, max_draft_tokens=limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlwaysNeural:
    """Asks the drafter at every step."""

    drafter: Drafter
    name: str
    reads_probe: bool = False

    @property
    def copy_index(self) -> CopyIndexShape:
        """Nothing is copied."""
        return CopyIndexShape(match_lengths=(), max_tokens=1)

    def draft(self, view: SequenceView) -> Draft:
        """The drafter's draft."""
        return self.drafter.draft(view)
