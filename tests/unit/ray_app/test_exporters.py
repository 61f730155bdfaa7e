"""The metrics page: vLLM's names twice, its identity of acceptance, and our own families."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.counters import EngineCounters
from engine.records import Request, RequestMetrics, StepRecord, TokenEvent
from ray_app.exporters import ALIAS, PREFIX, Exporter, TimedSource
from ray_app.journal import JournalCounters
from tests.support.fake_backend import FakeEvents


def record(source: str, *, drafted: int, accepted: int, score: float | None = None) -> StepRecord:
    return StepRecord(
        request="r",
        step=1,
        source=source,  # type: ignore[arg-type]
        drafted=drafted,
        rows=drafted + 1,
        accepted=accepted,
        output=accepted + 1,
        draft_ms=1.0,
        verify_ms=9.0,
        probe_score=score,
        reason="matched" if source == "copy" else "no_match",
    )


def counters() -> EngineCounters:
    found = EngineCounters()
    for step in (
        record("copy", drafted=6, accepted=4, score=0.93),
        record("copy", drafted=6, accepted=0, score=0.71),
        record("neural", drafted=3, accepted=2, score=0.12),
        record("plain", drafted=0, accepted=0, score=0.2),
    ):
        found.observe([step], plain_seconds=0.008)
    found.link = {"asked": 3, "stale": 1}
    return found


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def exporter() -> Exporter:
    return Exporter("tiny", lambda: (counters(), JournalCounters(migrations=2)))


def test_vllms_names_come_under_both_prefixes(exporter: Exporter) -> None:
    found = samples(exporter.text())
    own = {(name.removeprefix(PREFIX), labels) for name, labels in found if name.startswith(PREFIX)}
    alias = {(n.removeprefix(ALIAS), labels) for n, labels in found if n.startswith(ALIAS)}
    assert alias < own
    names = {name for name, _ in alias}
    assert {
        "num_requests_running",
        "kv_cache_usage_perc",
        "generation_tokens_total",
        "prefix_cache_hits_total",
        "time_to_first_token_seconds_bucket",
        "spec_decode_num_drafts_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
    } <= names
    assert not any("by_source" in name for name in names)


def test_acceptance_keeps_the_identity_that_dashboards_assume(exporter: Exporter) -> None:
    """Mean acceptance length = 1 + accepted / drafts = 1 + the sum of per-position rates."""
    found = samples(exporter.text())
    model = (("model_name", "tiny"),)
    drafts = found[ALIAS + "spec_decode_num_drafts_total", model]
    accepted = found[ALIAS + "spec_decode_num_accepted_tokens_total", model]
    by_position = sum(
        value for (name, _), value in found.items() if name.startswith(ALIAS) and "per_pos" in name
    )
    assert (drafts, accepted) == (3, 6)
    assert by_position == accepted


def test_our_own_families(exporter: Exporter) -> None:
    found = samples(exporter.text())

    def value(name: str, **labels: str) -> float:
        return found[PREFIX + name, tuple(sorted({"model_name": "tiny", **labels}.items()))]

    assert value("steps_total", source="copy", reason="matched") == 2
    assert value("empty_by_source_total", source="copy") == 1
    assert value("link_events_total", event="stale") == 1
    assert value("request_migrations_total") == 2
    assert value("gate_steps_total", score="0.9", outcome="accepted") == 1
    assert value("gate_steps_total", score="0.7", outcome="copied") == 1
    assert value("gate_steps_total", score="0.7", outcome="accepted") == 0
    # Ten output tokens at 8 ms each, in four passes of 9 ms with 1 ms of drafting each.
    assert value("time_saved_seconds_total") == pytest.approx(0.080 - 0.040)


class OneAnswer:
    """Two events; ``fails`` breaks in between."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    async def submit(self, request: Request) -> FakeEvents:
        del request
        return FakeEvents(self._events())

    async def _events(self) -> AsyncGenerator[TokenEvent]:
        yield TokenEvent(request_id="r", token_ids=(1,), sources=("verifier",))
        if self._fails:
            raise RuntimeError("broken")
        yield TokenEvent(
            request_id="r",
            token_ids=(2, 3),
            sources=("copy", "verifier"),
            finish_reason="stop",
            metrics=RequestMetrics(
                queued_seconds=0.5,
                prefill_seconds=0.1,
                decode_seconds=0.2,
                cached_tokens=0,
                steps={"copy": 1},
                accepted={"copy": 1},
                num_draft_tokens=1,
                acceptance_histogram=(0, 1),
            ),
        )


REQUEST = Request(request_id="r", prompt_ids=(1,), max_tokens=9)


async def take(events: AsyncIterator[TokenEvent], count: int) -> None:
    for _ in range(count):
        await anext(events)


def outcome(
    exporter: Exporter, source: OneAnswer, count: int, *, completes: bool = False
) -> dict[str, float]:
    """Requests by reason, after reading so many events and leaving."""

    async def run() -> None:
        events = await TimedSource(source, exporter).submit(REQUEST)
        try:
            await take(aiter(events), count)
            if completes:
                events.complete()
        except RuntimeError:
            return
        finally:
            await events.aclose()

    asyncio.run(run())
    return {
        dict(labels)["finished_reason"]: value
        for (name, labels), value in samples(exporter.text()).items()
        if name == PREFIX + "request_success_total"
    }


@pytest.mark.parametrize(
    ("fails", "count", "reason"), [(False, 2, "stop"), (False, 1, "abort"), (True, 2, "error")]
)
def test_every_request_ends_once_with_its_reason(
    exporter: Exporter, count: int, reason: str, *, fails: bool
) -> None:
    assert outcome(exporter, OneAnswer(fails=fails), count) == {reason: 1.0}
    found = samples(exporter.text())
    model = (("model_name", "tiny"),)
    assert found[PREFIX + "time_to_first_token_seconds_count", model] == 1
    assert found[PREFIX + "request_queue_time_seconds_sum", model] == (
        0.5 if reason == "stop" else 0
    )


def test_an_answer_that_a_stop_string_ended_is_no_abort(exporter: Exporter) -> None:
    assert outcome(exporter, OneAnswer(), 1, completes=True) == {"stop": 1.0}
