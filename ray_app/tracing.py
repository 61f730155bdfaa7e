"""OpenTelemetry: one span per request, sent to an OTLP endpoint; only where one was named.

Attribute names are vLLM's, which follow OpenTelemetry's conventions for generative models.
"""

from __future__ import annotations

import time
from typing import Any

from engine.records import Request, RequestMetrics

SPAN = "llm_request"


class SpanTracer:
    """Reports spans to an OpenTelemetry exporter."""

    def __init__(self, exporter: Any, model_name: str) -> None:
        """``exporter`` is an ``opentelemetry.sdk.trace.export.SpanExporter``."""
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - only where traces are on
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        resource = Resource.create({"service.name": "switchsteer"})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("switchsteer")
        self._model_name = model_name

    def finished(
        self,
        request: Request,
        *,
        started: float,
        num_tokens: int,
        reason: str,
        metrics: RequestMetrics | None,
    ) -> None:
        """One span from the request's arrival to its end."""
        now = time.time_ns()
        begun = now - int((time.monotonic() - started) * 1e9)
        span = self._tracer.start_span(SPAN, start_time=begun)
        span.set_attributes(
            {
                "gen_ai.request.id": request.request_id,
                "gen_ai.response.model": self._model_name,
                "gen_ai.request.max_tokens": request.max_tokens,
                "gen_ai.request.temperature": request.sampling.temperature,
                "gen_ai.usage.prompt_tokens": len(request.prompt_ids),
                "gen_ai.usage.completion_tokens": num_tokens,
                "gen_ai.response.finish_reason": reason,
            }
        )
        if metrics is not None:
            span.set_attribute("gen_ai.latency.time_in_queue", metrics.queued_seconds)
            span.set_attribute("gen_ai.latency.time_in_model_prefill", metrics.prefill_seconds)
            span.set_attribute("gen_ai.latency.time_in_model_decode", metrics.decode_seconds)
            for source, count in metrics.steps.items():
                span.set_attribute(f"switchsteer.steps.{source}", count)
        span.end(now)

    def flush(self) -> None:
        """Send what is waiting."""
        self._provider.force_flush()


def tracer_for(endpoint: str | None, model_name: str) -> SpanTracer | None:
    """A tracer for an OTLP endpoint (HTTP), where one was named.

    Raises:
        ValueError: the exporter's package is not installed.
    """
    if endpoint is None:
        return None
    check_tracing()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )

    return SpanTracer(OTLPSpanExporter(endpoint=endpoint), model_name)


def check_tracing() -> None:
    """Raise ``ValueError`` with a sentence where the exporter's package is missing."""
    try:
        import opentelemetry.exporter.otlp.proto.http  # noqa: F401, PLC0415
    except ImportError:
        raise ValueError(
            "--otlp-traces-endpoint needs the package opentelemetry-exporter-otlp-proto-http: "
            "pip install 'switchsteer[tracing]'"
        ) from None
