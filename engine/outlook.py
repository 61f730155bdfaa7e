"""What a step may cost and bring, as far as it is known before anything is drafted."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.draft_economy import LookaheadCounts
from engine.gate_features import CopyCalibration
from engine.step_time import StepTimeTable

_PRICED_ROWS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Expected tokens per expected time of the coming step, for one of its sequences."""

    step_times: StepTimeTable | None
    """None: time does not count, only tokens do."""
    rows: int
    """Rows that run in any case: prompt chunks and the pending tokens of all sequences."""
    num_sequences: int
    """Sequences that decode: each gets a token at least."""
    lookahead: LookaheadCounts
    """What neural drafts cost and brought."""

    calibration: CopyCalibration = field(default_factory=CopyCalibration)
    """How far the gate is off here."""

    @property
    def row_share(self) -> float:
        """What a further row costs, as a share of the step without drafts."""
        if self.step_times is None:
            return 0.0
        plain = self.step_times.at(self.rows)
        return (self.step_times.at(self.rows + _PRICED_ROWS) / plain - 1.0) / _PRICED_ROWS

    def rate(self, *, tokens: float = 0.0, rows: float = 0.0, draft_ms: float = 0.0) -> float:
        """Tokens per millisecond when a draft of ``rows`` rows brings ``tokens`` more."""
        total = self.num_sequences + tokens
        if self.step_times is None:
            return total
        return total / (self.step_times.at(round(self.rows + rows)) + draft_ms)
