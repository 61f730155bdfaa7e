"""Prometheus: vLLM's metric names (under our prefix and under ``vllm:``), and what only we count.

The engine's counters come as snapshots; requests are timed here, where their tokens pass. The
``vllm:`` alias lets every dashboard and benchmark that scrapes vLLM read this server.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.counters import GATE_BUCKETS, EngineCounters
from engine.records import Request, RequestMetrics, TokenEvent
from ray_app.generation import Events, TokenSource
from ray_app.journal import JournalCounters
from ray_app.tracing import SpanTracer

PREFIX = "switchsteer:"
ALIAS = "vllm:"

_SHARED = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_success",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
)
"""Names that mean in vLLM what they mean here."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5, 10, 30, 60, 300)
_LABELS = ("model_name",)

Snapshot = Callable[[], tuple[EngineCounters, JournalCounters]]
"""The newest counters of the engine and the journal."""


class Exporter:
    """All metrics of one ingress."""

    def __init__(self, model_name: str, snapshot: Snapshot) -> None:
        self._model_name = model_name
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(model_name, snapshot))
        self._histograms = {name: self._histogram(name) for name in _SHARED if "seconds" in name}
        self._success = Counter(
            f"{PREFIX}request_success",
            "Requests by the reason of their end.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )

    def _histogram(self, name: str) -> Histogram:
        text = name.replace("_", " ").capitalize() + "."
        found = Histogram(PREFIX + name, text, _LABELS, registry=self._registry, buckets=_SECONDS)
        found.labels(self._model_name)
        return found

    def observe(self, name: str, seconds: float) -> None:
        """One more time of a kind."""
        self._histograms[name].labels(self._model_name).observe(seconds)

    def finish(self, reason: str) -> None:
        """One more request has ended."""
        self._success.labels(self._model_name, reason).inc()

    def text(self) -> str:
        """The page that Prometheus scrapes."""
        own = generate_latest(self._registry).decode()
        return own + _aliased(own)


def _aliased(text: str) -> str:
    """The shared families once more, under vLLM's prefix."""
    names, endings = "|".join(_SHARED), "_total|_bucket|_sum|_count|_created"
    pattern = re.compile(rf"(# (HELP|TYPE) )?{PREFIX}({names})({endings})?[ {{]")
    lines = [line for line in text.splitlines() if pattern.match(line)]
    return "\n".join(line.replace(PREFIX, ALIAS, 1) for line in lines) + "\n"


@dataclass(frozen=True, slots=True)
class _EngineCollector:
    """Turns snapshots into families whenever somebody scrapes."""

    model_name: str
    snapshot: Snapshot

    def collect(self) -> Iterator[Metric]:
        """All families."""
        engine, journal = self.snapshot()
        yield from self._gauges(engine)
        yield from self._totals(engine, journal)
        yield from self._by_source(engine)
        yield self._counter("steps", _pairs(engine), ("source", "reason"))
        yield self._counter("link_events", [((k,), v) for k, v in engine.link.items()], ("event",))
        yield self._counter("gate_steps", _gate(engine), ("score", "outcome"))

    def _gauges(self, engine: EngineCounters) -> Iterator[Metric]:
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            family = GaugeMetricFamily(PREFIX + name, name.replace("_", " "), labels=_LABELS)
            family.add_metric((self.model_name,), float(getattr(engine, name)))
            yield family

    def _totals(self, engine: EngineCounters, journal: JournalCounters) -> Iterator[Metric]:
        sources = engine.sources.values()
        totals: dict[str, float] = {
            "num_preemptions": engine.num_preemptions,
            "prompt_tokens": engine.prompt_tokens,
            "generation_tokens": engine.generation_tokens,
            "prefix_cache_queries": engine.prefix_cache_queries,
            "prefix_cache_hits": engine.prefix_cache_hits,
            "spec_decode_num_drafts": sum(s.num_drafts for s in sources),
            "spec_decode_num_draft_tokens": sum(s.num_draft_tokens for s in sources),
            "spec_decode_num_accepted_tokens": sum(s.num_accepted_tokens for s in sources),
            "engine_steps": engine.num_steps,
            "draft_seconds": engine.draft_seconds,
            "verify_seconds": engine.verify_seconds,
            "time_saved_seconds": engine.saved_seconds,
            "near_ties": engine.near_ties,
            "request_migrations": journal.migrations,
        }
        for name, value in totals.items():
            yield self._counter(name, [((), value)], ())

    def _by_source(self, engine: EngineCounters) -> Iterator[Metric]:
        columns = zip_longest(*(s.accepted_per_pos for s in engine.sources.values()), fillvalue=0)
        positions = [((str(position),), sum(counts)) for position, counts in enumerate(columns)]
        yield self._counter("spec_decode_num_accepted_tokens_per_pos", positions, ("position",))
        for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_empty"):
            values = [((source,), getattr(s, name)) for source, s in engine.sources.items()]
            family = name.removeprefix("num_") + "_by_source"
            yield self._counter(family, values, ("source",))

    def _counter(
        self,
        name: str,
        values: Iterable[tuple[tuple[str, ...], float]],
        labels: tuple[str, ...],
    ) -> Metric:
        family = CounterMetricFamily(
            PREFIX + name, name.replace("_", " "), labels=(*_LABELS, *labels)
        )
        for found, value in values:
            family.add_metric((self.model_name, *found), float(value))
        return family


def _pairs(engine: EngineCounters) -> list[tuple[tuple[str, ...], float]]:
    found: list[tuple[tuple[str, ...], float]] = []
    for key, count in engine.steps_by_reason.items():
        source, _, reason = key.partition(":")
        found.append(((source, reason), count))
    return found


def _gate(engine: EngineCounters) -> list[tuple[tuple[str, ...], float]]:
    """Calibration: how often a score came up, was acted on, and was right."""
    outcomes = {
        "scored": engine.gate.scored,
        "copied": engine.gate.copied,
        "accepted": engine.gate.accepted,
    }
    return [
        ((f"{bucket / GATE_BUCKETS:.1f}", outcome), counts[bucket])
        for outcome, counts in outcomes.items()
        for bucket in range(GATE_BUCKETS)
    ]


@dataclass(frozen=True, slots=True)
class TimedSource:
    """Implements ``generation.TokenSource``: times what passes through another one."""

    inner: TokenSource
    exporter: Exporter
    tracer: SpanTracer | None = None

    async def submit(self, request: Request) -> TimedEvents:
        """Hand the request on, and time it from here."""
        started = time.monotonic()
        inner = await self.inner.submit(request)
        return TimedEvents(inner, request, self.exporter, self.tracer, started)


@dataclass(slots=True)
class TimedEvents:
    """Implements ``generation.Events``."""

    inner: Events
    request: Request
    exporter: Exporter
    tracer: SpanTracer | None
    started: float
    _metrics: RequestMetrics | None = None
    _last: float | None = None
    _first: float = 0.0
    _num_tokens: int = 0
    _is_open: bool = True

    async def __aiter__(self) -> AsyncGenerator[TokenEvent]:
        """The events, observed as they pass."""
        try:
            async for event in self.inner:
                self._observe(event)
                yield event
        except BaseException:
            self._finish("error")
            raise

    def _observe(self, event: TokenEvent) -> None:
        now = time.monotonic()
        if self._last is None:
            self._first = now
            self.exporter.observe("time_to_first_token_seconds", now - self.started)
        else:
            self.exporter.observe("inter_token_latency_seconds", now - self._last)
        self._last = now
        self._num_tokens += len(event.token_ids)
        if event.metrics is not None:
            self._metrics = event.metrics
            for part in ("queue", "prefill", "decode"):
                name = "queued" if part == "queue" else part
                seconds = getattr(event.metrics, f"{name}_seconds")
                self.exporter.observe(f"request_{part}_time_seconds", seconds)
        if event.finish_reason is not None:
            self._finish(event.finish_reason)

    def _finish(self, reason: str) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self.exporter.finish(reason)
        if self.tracer is not None:
            self.tracer.finished(
                self.request,
                started=self.started,
                num_tokens=self._num_tokens,
                reason=reason,
                metrics=self._metrics,
            )
        if self._last is not None:
            self.exporter.observe("e2e_request_latency_seconds", self._last - self.started)
            if self._num_tokens > 1:
                each = (self._last - self._first) / (self._num_tokens - 1)
                self.exporter.observe("request_time_per_output_token_seconds", each)

    def complete(self) -> None:
        """A stop string has ended the answer."""
        self._finish("stop")

    async def aclose(self) -> None:
        """Nobody reads any more."""
        self._finish("abort")
        await self.inner.aclose()
