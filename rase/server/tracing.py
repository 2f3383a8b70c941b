"""OpenTelemetry: a span for each request for a model, where RASE_OTEL asks for it (extra ``otel``).

The span of a request is ``chat MODEL`` or ``text_completion MODEL``, of kind server, below the one that the
client names in ``traceparent``; its parts are ``queue``, ``prefill`` and ``decode``. Attributes are those of
the semantic conventions for generative AI, and never a prompt or an answer. Spans are written when a request
has ended: nothing is done while it runs. Without RASE_OTEL nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import rase
from rase.errors import BackendUnavailable, InvalidSetting
from rase.server.access import facts

__all__ = ["set_up_export", "span_writer"]

_OPERATIONS = {"chat": "chat", "completion": "text_completion"}  # by endpoint


def span_writer() -> Callable[[Any, int, float], None]:
    """A function of (ASGI scope, status, seconds) that writes the spans of a request which has ended.

    They go to the global tracer provider. Raises ``BackendUnavailable`` without ``opentelemetry-api``.
    """
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        raise _missing("opentelemetry-api") from None
    tracer = trace.get_tracer("rase", rase.__version__)

    def write(scope: Any, status: int, seconds: float) -> None:
        known = facts(scope)
        operation = _OPERATIONS.get(getattr(scope.get("endpoint"), "__name__", ""))
        if operation is None:
            return
        end = time.time_ns()
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        model = str(known.get("model", ""))[:200]
        span = tracer.start_span(
            f"{operation} {model}".strip(), context=propagate.extract(carrier), kind=trace.SpanKind.SERVER,
            start_time=end - int(1e9 * seconds),
            attributes=_attributes(scope, known, operation, model, status),
        )  # fmt: skip
        if status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        inside = trace.set_span_in_context(span)
        for name, begin, over in _parts(known):
            tracer.start_span(name, context=inside, start_time=begin).end(over)
        span.end(end)

    return write


def _attributes(scope: Any, known: dict[str, Any], operation: str, model: str, status: int) -> dict[str, Any]:
    found = {
        "gen_ai.operation.name": operation, "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": known.get("prompt"),
        "gen_ai.usage.output_tokens": known.get("completion"),
        "gen_ai.response.finish_reasons": known["finish"].split(",") if "finish" in known else None,
        "http.request.method": scope["method"], "url.path": scope["path"][:200],
        "http.response.status_code": status, "error.type": known.get("error"),
        "rase.request_id": known.get("id"), "rase.cached_tokens": known.get("cached"),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def _parts(known: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(name, begin, end) of what a request went through, in nanoseconds since the epoch."""
    end = known.get("ended", 0)
    parts = []
    for name in ("decode", "prefill", "queue"):
        if f"{name}_s" in known:
            begin = end - int(1e9 * known[f"{name}_s"])
            parts.append((name, begin, end))
            end = begin
    return parts[::-1]


def set_up_export() -> Callable[[], object]:
    """Send spans where OTEL_EXPORTER_OTLP_ENDPOINT says, or to stderr with OTEL_TRACES_EXPORTER=console.

    Returns what is to be called at the end, so that no span is lost. A provider that the process has set up
    by itself stays. Raises ``BackendUnavailable`` without the packages, ``InvalidSetting`` for another
    exporter.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
    except ImportError:
        raise _missing("opentelemetry-sdk") from None
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return lambda: None
    wanted = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    exporter: SpanExporter
    if wanted == "console":
        exporter = ConsoleSpanExporter(
            out=sys.stderr,
            formatter=lambda span: f"{span.to_json(indent=None)}\n",
        )
    elif wanted == "otlp":
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            raise _missing("opentelemetry-exporter-otlp-proto-http") from None
        exporter = OTLPSpanExporter()
    else:
        raise InvalidSetting("OTEL_TRACES_EXPORTER", expected="otlp or console", found=repr(wanted[:40]))
    name = os.environ.get("OTEL_SERVICE_NAME", "rase")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _missing(package: str) -> BackendUnavailable:
    return BackendUnavailable(
        "OpenTelemetry", expected=f"the package '{package}'", found="it is not installed",
        hint='Install it with: pip install "rase-llm[otel]"',
    )  # fmt: skip
