"""SwitchSD (arXiv 2609.20186): a verifier probe decides between copying and drafting.

Copy only when the probe reads copy intent at row NA (the row whose logits emitted the pending
token) *and* the last kappa tokens, the pending token the last of them, occurred before; otherwise
draft neurally. A copy step never calls the neural drafter. The paper's kappa, W, D and tau are
``match_length``, ``max_candidates``, ``max_tokens`` and ``probe_threshold``.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.policies.fallback import NO_DRAFTER, Fallback
from engine.policies.stateless import Stateless
from engine.records import Choice, CopyIndexShape, SequenceView, copied


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSD(Stateless):
    """Probe-gated copying with a fallback drafter."""

    probe_threshold: float
    """Copy intent from which the gate opens; 0 opens it always (copying on every match)."""
    match_length: int = 5
    max_candidates: int = 10
    max_tokens: int = 20
    fallback: Fallback = NO_DRAFTER
    name: str = "switch_sd"

    @property
    def copy_index(self) -> CopyIndexShape:
        """One match length."""
        return CopyIndexShape(match_lengths=(self.match_length,), max_tokens=self.max_tokens)

    def choose(self, view: SequenceView) -> Choice:
        """Copy if the gate is open and there is something to copy, else fall back."""
        if not self._gate_is_open(view):
            return self.fallback.choose("gate_closed")
        candidates = self._copies(view)
        if candidates:
            return copied(candidates, match_length=self.match_length)
        return self.fallback.choose("no_match")

    def _gate_is_open(self, view: SequenceView) -> bool:
        if self.probe_threshold == 0:
            return True
        assert view.probe_score is not None, "the runner evaluates the probe for this policy"
        return view.probe_score >= self.probe_threshold

    def _copies(self, view: SequenceView) -> tuple[tuple[int, ...], ...]:
        return view.copies.continuations(
            match_length=self.match_length,
            max_candidates=self.max_candidates,
            max_tokens=self.max_tokens,
        )
