"""Logs with request ids, spans with what a request cost, a dashboard of metrics that exist."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engine.counters import EngineCounters
from engine.records import Request, RequestMetrics
from ray_app.exporters import Exporter
from ray_app.journal import JournalCounters
from ray_app.logs import JsonFormatter
from ray_app.tracing import SPAN, SpanTracer, tracer_for

DASHBOARD = Path(__file__).parents[3] / "launch" / "deploy" / "grafana.json"
REQUEST = Request(request_id="chatcmpl-1", prompt_ids=(1, 2, 3), max_tokens=9)


def test_a_json_line_carries_the_requests_id() -> None:
    record = logging.LogRecord("ray_app.app", logging.INFO, "", 0, "POST %s", ("/v1",), None)
    record.request_id = "abc"
    fields = json.loads(JsonFormatter().format(record))
    assert (fields["message"], fields["request_id"], fields["level"]) == ("POST /v1", "abc", "INFO")


def test_a_span_says_what_a_request_cost() -> None:
    exporter = InMemorySpanExporter()
    tracer = SpanTracer(exporter, "tiny")
    metrics = RequestMetrics(
        queued_seconds=0.1,
        prefill_seconds=0.2,
        decode_seconds=0.3,
        cached_tokens=0,
        steps={"copy": 2},
        accepted={"copy": 4},
        num_draft_tokens=6,
        acceptance_histogram=(0, 0, 2),
    )
    tracer.finished(
        REQUEST, started=time.monotonic() - 1.0, num_tokens=6, reason="stop", metrics=metrics
    )
    tracer.flush()
    [span] = exporter.get_finished_spans()
    assert span.name == SPAN
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.completion_tokens"] == 6
    assert span.attributes["gen_ai.latency.time_in_queue"] == 0.1
    assert span.attributes["switchsteer.steps.copy"] == 2
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0.9e9 < span.end_time - span.start_time < 5e9


def test_no_endpoint_traces_nothing() -> None:
    assert tracer_for(None, "tiny") is None


def test_every_panel_of_the_dashboard_asks_for_a_metric_that_exists() -> None:
    counters = EngineCounters(steps_by_reason={"copy:matched": 1}, link={"asked": 1})
    counters.sources["copy"].accepted_per_pos = [1]
    exporter = Exporter("tiny", lambda: (counters, JournalCounters()))
    exporter.finish("stop")
    known = set(re.findall(r"^(switchsteer:\w+)", exporter.text(), re.MULTILINE))
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    assert len(expressions) >= 12
    for expression in expressions:
        asked = set(re.findall(r"switchsteer:\w+", expression))
        assert asked
        assert asked <= known, asked - known


@pytest.mark.parametrize("name", ["engine", "drafters", "ray_app"])
def test_our_loggers_have_the_packages_names(name: str) -> None:
    """So that one place sets their form."""
    root = Path(__file__).parents[3] / name
    files = [path.read_text(encoding="utf-8") for path in root.rglob("*.py")]
    loggers = [line for text in files for line in text.splitlines() if "getLogger(" in line]
    ours = [line for line in loggers if "__name__" in line]
    assert ours
