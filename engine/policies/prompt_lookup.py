"""Prompt look-up decoding (Saxena 2023): copy after the longest n-gram match.

Source: apoorvumang/prompt-lookup-decoding.

For n = 3, 2, 1 the last n tokens are searched left to right; the first match whose whole
continuation of ``num_speculative_tokens`` tokens lies inside the context is proposed.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.policies.stateless import Stateless
from engine.records import Choice, CopyIndexShape, Draft, SequenceView, copied


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookup(Stateless):
    """One candidate: the earliest complete continuation of the longest matching n-gram."""

    num_speculative_tokens: int = 10
    max_match_length: int = 3
    name: str = "prompt_lookup"

    @property
    def copy_index(self) -> CopyIndexShape:
        """All n-gram lengths that are tried."""
        lengths = tuple(range(1, self.max_match_length + 1))
        return CopyIndexShape(match_lengths=lengths, max_tokens=self.num_speculative_tokens)

    def choose(self, view: SequenceView) -> Choice:
        """Try the longest n-gram first."""
        for length in range(self.max_match_length, 0, -1):
            continuation = view.copies.earliest_complete(match_length=length)
            if continuation:
                return copied((continuation,), match_length=length)
        return Draft(reason="no_match")
