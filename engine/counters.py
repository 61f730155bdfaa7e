"""What an engine has done since it started: plain numbers that exporters read.

The engine fills them from step records and knows no exporter. Names of the fields that vLLM has
too are vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest

from engine.metrics import DRAFT_SOURCES
from engine.records import StepRecord

MAX_POSITIONS = 32
"""Positions of a draft that are counted one by one; later ones count as the last."""
GATE_BUCKETS = 10
"""Tenths of the probe's score."""


@dataclass(slots=True, kw_only=True)
class SourceCounters:
    """Drafts of one source."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_empty: int = 0
    """Drafts of which nothing was accepted."""
    accepted_per_pos: list[int] = field(default_factory=list)
    """How often the draft token at each position was accepted."""

    def __add__(self, other: SourceCounters) -> SourceCounters:
        """Of two engines together."""
        columns = zip_longest(self.accepted_per_pos, other.accepted_per_pos, fillvalue=0)
        return SourceCounters(
            num_drafts=self.num_drafts + other.num_drafts,
            num_draft_tokens=self.num_draft_tokens + other.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens + other.num_accepted_tokens,
            num_empty=self.num_empty + other.num_empty,
            accepted_per_pos=[sum(counts) for counts in columns],
        )

    def observe(self, record: StepRecord) -> None:
        """Take in one verified draft."""
        self.num_drafts += 1
        self.num_draft_tokens += record.drafted
        self.num_accepted_tokens += record.accepted
        self.num_empty += record.accepted == 0
        missing = min(record.accepted, MAX_POSITIONS) - len(self.accepted_per_pos)
        self.accepted_per_pos += [0] * max(0, missing)
        for position in range(record.accepted):
            self.accepted_per_pos[min(position, MAX_POSITIONS - 1)] += 1


@dataclass(slots=True, kw_only=True)
class GateCounters:
    """Is the probe right: steps with a score by tenth, and those that then copied with success."""

    scored: list[int] = field(default_factory=lambda: [0] * GATE_BUCKETS)
    copied: list[int] = field(default_factory=lambda: [0] * GATE_BUCKETS)
    accepted: list[int] = field(default_factory=lambda: [0] * GATE_BUCKETS)

    def __add__(self, other: GateCounters) -> GateCounters:
        """Of two engines together."""
        return GateCounters(
            scored=[a + b for a, b in zip(self.scored, other.scored, strict=True)],
            copied=[a + b for a, b in zip(self.copied, other.copied, strict=True)],
            accepted=[a + b for a, b in zip(self.accepted, other.accepted, strict=True)],
        )

    def observe(self, record: StepRecord) -> None:
        """Take in one decode step."""
        if record.probe_score is None:
            return
        bucket = min(GATE_BUCKETS - 1, max(0, int(record.probe_score * GATE_BUCKETS)))
        self.scored[bucket] += 1
        if record.source == "copy":
            self.copied[bucket] += 1
            self.accepted[bucket] += record.accepted > 0


@dataclass(slots=True, kw_only=True)
class EngineCounters:
    """Counters of one engine; the gauges at the end are set by whoever knows them."""

    num_steps: int = 0
    """Verifier passes."""
    generation_tokens: int = 0
    steps_by_reason: dict[str, int] = field(default_factory=dict)
    """Decode steps by "source:reason"."""
    sources: dict[str, SourceCounters] = field(
        default_factory=lambda: {name: SourceCounters() for name in DRAFT_SOURCES}
    )
    gate: GateCounters = field(default_factory=GateCounters)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    saved_seconds: float = 0.0
    """Estimated: what plain steps would have taken longer."""
    near_ties: int = 0
    link: dict[str, int] = field(default_factory=dict)
    """The drafter link's counters, by name."""
    prompt_tokens: int = 0
    """Of requests that got a slot, cached ones included."""
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage_perc: float = 0.0
    """Share of the cache's tokens in use, from 0 to 1."""

    def observe(self, records: Iterable[StepRecord], *, plain_seconds: float | None) -> None:
        """Take in one step's records; ``plain_seconds`` is what a plain pass of them takes."""
        records = list(records)
        self.num_steps += 1
        for record in records:
            self.generation_tokens += record.output
            self.near_ties += len(record.near_ties)
            if record.source != "prefill":
                self._observe_decoding(record)
        if all(record.source != "prefill" for record in records):
            self._observe_times(records, plain_seconds)

    def _observe_decoding(self, record: StepRecord) -> None:
        key = f"{record.source}:{record.reason}"
        self.steps_by_reason[key] = self.steps_by_reason.get(key, 0) + 1
        self.gate.observe(record)
        if record.source in self.sources:
            self.sources[record.source].observe(record)

    def _observe_times(self, decoding: list[StepRecord], plain_seconds: float | None) -> None:
        """A pass that runs prompt rows too says nothing about drafts."""
        drafting = sum(record.draft_ms for record in decoding) / 1e3
        verifying = max(record.verify_ms for record in decoding) / 1e3
        self.draft_seconds += drafting
        self.verify_seconds += verifying
        if plain_seconds is not None:
            tokens = sum(record.output for record in decoding) / len(decoding)
            self.saved_seconds += tokens * plain_seconds - drafting - verifying

    def __add__(self, other: EngineCounters) -> EngineCounters:
        """Of two engines together; a share becomes the mean of two."""
        sums = {
            item.name: getattr(self, item.name) + getattr(other, item.name)
            for item in fields(self)
            if item.name not in ("steps_by_reason", "sources", "link")
        }
        sums["kv_cache_usage_perc"] /= 2
        return EngineCounters(
            **sums,
            steps_by_reason=_added(self.steps_by_reason, other.steps_by_reason),
            sources={name: one + other.sources[name] for name, one in self.sources.items()},
            link=_added(self.link, other.link),
        )

    def snapshot(self) -> EngineCounters:
        """A copy that no longer changes."""
        return replace(
            self,
            steps_by_reason=dict(self.steps_by_reason),
            sources={
                name: replace(one, accepted_per_pos=list(one.accepted_per_pos))
                for name, one in self.sources.items()
            },
            gate=replace(
                self.gate,
                scored=list(self.gate.scored),
                copied=list(self.gate.copied),
                accepted=list(self.gate.accepted),
            ),
            link=dict(self.link),
        )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}
