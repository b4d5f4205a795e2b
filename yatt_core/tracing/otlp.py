"""OpenTelemetry's exporters behind bounded queues. The only module that imports them; needs the extra `otel`.

Consumes finished spans and log records as plain values; produces OTLP messages.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from yatt_core.tracing.export import BoundedExport
from yatt_core.tracing.identity import SpanPlace
from yatt_core.tracing.settings import TracingSettings

SEND_SECONDS = 5.0
"""How long a batch may take, including the exporter's own retries."""
KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}
SEVERITIES = {10: SeverityNumber.DEBUG, 20: SeverityNumber.INFO, 30: SeverityNumber.WARN, 40: SeverityNumber.ERROR}
Values = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class FinishedSpan:
    """A span. Times are nanoseconds since 1970.

    kind: internal, client or server.
    failure: why it failed; empty if it did not.
    """

    name: str
    place: SpanPlace
    parent: SpanPlace | None
    start: int
    end: int
    kind: str
    attributes: Values
    failure: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record. level: as in Python's logging."""

    at: int
    level: int
    text: str
    place: SpanPlace | None
    attributes: Values


class OtlpOutput:
    """Sends the spans and logs of a process.

    attributes: those of the resource, such as the run.
    """

    def __init__(self, settings: TracingSettings, attributes: Values) -> None:
        own = {"service.name": "yatt", "service.version": version("yatt"), "host.name": socket.gethostname()}
        self._resource = Resource({**own, **attributes})
        self._scope = InstrumentationScope("yatt", version("yatt"))
        # The exporters would log each failure to send; the queues count them instead.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        spans, logs = _exporters(settings)
        self._spans = BoundedExport[FinishedSpan](
            "spans", lambda batch: spans.export([self._span(each) for each in batch]) is SpanExportResult.SUCCESS
        )
        self._logs = BoundedExport[LogLine](
            "log records",
            lambda batch: logs.export([self._line(each) for each in batch]) is LogRecordExportResult.SUCCESS,
        )

    def span(self, span: FinishedSpan) -> None:
        """Queues a span."""
        self._spans.add(span)

    def line(self, line: LogLine) -> None:
        """Queues a log record."""
        self._logs.add(line)

    def end(self, seconds: float) -> int:
        """Sends what is queued, for at most so many seconds; returns how much was never sent."""
        return self._spans.end(seconds / 2) + self._logs.end(seconds / 2)

    def _span(self, span: FinishedSpan) -> ReadableSpan:
        status = Status(StatusCode.ERROR, span.failure) if span.failure else Status(StatusCode.OK)
        return ReadableSpan(
            name=span.name,
            context=_context(span.place),
            parent=None if span.parent is None else _context(span.parent),
            resource=self._resource,
            attributes=span.attributes,
            kind=KINDS[span.kind],
            status=status,
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=self._scope,
        )

    def _line(self, line: LogLine) -> ReadableLogRecord:
        record = LogRecord(
            timestamp=line.at,
            observed_timestamp=line.at,
            trace_id=line.place.trace_id if line.place else 0,
            span_id=line.place.span_id if line.place else 0,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
            severity_text=logging.getLevelName(line.level),
            severity_number=SEVERITIES.get(line.level // 10 * 10, SeverityNumber.FATAL),
            body=line.text,
            attributes=dict(line.attributes),
        )
        return ReadableLogRecord(record, self._resource, self._scope)


def _context(place: SpanPlace) -> SpanContext:
    return SpanContext(place.trace_id, place.span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _exporters(settings: TracingSettings) -> tuple[Any, Any]:
    """Returns the exporters of spans and of logs."""
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans

        insecure = settings.endpoint.startswith("http:")
        given: dict[str, Any] = {"endpoint": settings.endpoint, "insecure": insecure, "timeout": SEND_SECONDS}
        return GrpcSpans(**given), GrpcLogs(**given)
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans

    base = settings.endpoint.rstrip("/")
    return (
        HttpSpans(endpoint=f"{base}/v1/traces", timeout=SEND_SECONDS),
        HttpLogs(endpoint=f"{base}/v1/logs", timeout=SEND_SECONDS),
    )
