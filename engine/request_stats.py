"""What one request's steps did: for its reply, under the names that vLLM uses where it has them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from engine.records import RequestMetrics, StepRecord


@dataclass(slots=True, kw_only=True)
class RequestStats:
    """Collects a request's times and step records while it runs."""

    arrived: float
    started: float = field(default_factory=time.monotonic)
    """When it got its slot."""
    first_token: float | None = None
    cached_tokens: int = 0
    """Prompt tokens that needed no computing."""
    _steps: dict[str, int] = field(default_factory=dict)
    _accepted: dict[str, int] = field(default_factory=dict)
    _num_draft_tokens: int = 0
    _histogram: list[int] = field(default_factory=list)

    def observe(self, record: StepRecord) -> None:
        """Take in one step of the request."""
        if record.output and self.first_token is None:
            self.first_token = time.monotonic()
        if record.source == "prefill":
            return
        self._steps[record.source] = self._steps.get(record.source, 0) + 1
        self._accepted[record.source] = self._accepted.get(record.source, 0) + record.accepted
        self._num_draft_tokens += record.drafted
        if record.drafted:
            self._histogram += [0] * (record.accepted + 1 - len(self._histogram))
            self._histogram[record.accepted] += 1

    def metrics(self) -> RequestMetrics:
        """Up to now; asked when the request ends."""
        now = time.monotonic()
        first = now if self.first_token is None else self.first_token
        return RequestMetrics(
            queued_seconds=self.started - self.arrived,
            prefill_seconds=first - self.started,
            decode_seconds=now - first,
            cached_tokens=self.cached_tokens,
            steps=dict(self._steps),
            accepted=dict(self._accepted),
            num_draft_tokens=self._num_draft_tokens,
            acceptance_histogram=tuple(self._histogram),
        )
