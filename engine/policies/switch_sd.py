"""SwitchSD (arXiv 2609.20186): a verifier probe decides between copying and drafting.

Copy only when the probe reads copy intent at row NA (the row whose logits emitted the pending
token) *and* the last kappa tokens, the pending token the last of them, occurred before; otherwise
draft neurally. A copy step never calls the neural drafter. The paper's kappa, W, D and tau are
``match_length``, ``max_candidates``, ``max_tokens`` and ``probe_threshold``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.interfaces import Drafter
from engine.policies.vanilla import Vanilla
from engine.records import CopyIndexShape, Draft, SequenceView


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSD:
    """Probe-gated copying with a fallback drafter."""

    probe_threshold: float
    """Copy intent from which the gate opens; 0 opens it always (copying on every match)."""
    match_length: int = 5
    max_candidates: int = 10
    max_tokens: int = 20
    fallback: Drafter = field(default_factory=Vanilla)
    name: str = "switch_sd"

    @property
    def reads_probe(self) -> bool:
        """A gate that is always open needs no probe."""
        return self.probe_threshold > 0.0

    @property
    def copy_index(self) -> CopyIndexShape:
        """One match length."""
        return CopyIndexShape(match_lengths=(self.match_length,), max_tokens=self.max_tokens)

    def draft(self, view: SequenceView) -> Draft:
        """Copy if the gate is open and there is something to copy, else ask the fallback."""
        candidates = self._copies(view) if self._gate_is_open(view) else ()
        if candidates:
            return Draft(source="copy", candidates=candidates, match_length=self.match_length)
        return self.fallback.draft(view)

    def _gate_is_open(self, view: SequenceView) -> bool:
        if not self.reads_probe:
            return True
        assert view.probe_score is not None, "the runner evaluates the probe for this policy"
        return view.probe_score >= self.probe_threshold

    def _copies(self, view: SequenceView) -> tuple[tuple[int, ...], ...]:
        return view.copies.continuations(
            match_length=self.match_length,
            max_candidates=self.max_candidates,
            max_tokens=self.max_tokens,
        )
