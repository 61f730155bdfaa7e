"""Vanilla: plain autoregressive decoding, the baseline of every speed-up."""

from __future__ import annotations

from dataclasses import dataclass

from engine.policies.stateless import Stateless
from engine.records import Choice, CopyIndexShape, Draft, SequenceView


@dataclass(frozen=True, slots=True)
class Vanilla(Stateless):
    """Never drafts."""

    name: str = "vanilla"

    @property
    def copy_index(self) -> CopyIndexShape:
        """Nothing is copied."""
        return CopyIndexShape(match_lengths=(), max_tokens=1)

    def choose(self, view: SequenceView) -> Choice:  # noqa: ARG002 - the protocol's signature
        """An empty draft: a plain step."""
        return Draft(reason="always")
