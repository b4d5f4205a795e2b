"""An OTLP receiver over HTTP, with the messages of the official protocol: keeps the spans and log records that it gets.

It stands in for a collector, none of which can be installed from the package registries that the tests use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import (
    LogsServiceServicer,
    add_LogsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True)
class ReceivedSpan:
    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    kind: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    failure: str


@dataclass
class Received:
    address: str
    status: int = 200
    requests: int = 0
    spans: list[ReceivedSpan] = field(default_factory=list)
    logs: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """Text, trace and attributes of each record."""
    bodies: list[bytes] = field(default_factory=list)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def spans_in(body: bytes) -> Iterator[ReceivedSpan]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                    span.start_time_unix_nano, span.end_time_unix_nano, span.kind, values(span.attributes),
                    values(resource.resource.attributes), span.status.message,
                )  # fmt: skip


def logs_in(body: bytes) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                yield record.body.string_value, record.trace_id.hex(), values(record.attributes)


class _Traces(TraceServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:
        self._received.spans += spans_in(request.SerializeToString())
        return ExportTraceServiceResponse()


class _Logs(LogsServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:
        self._received.logs += logs_in(request.SerializeToString())
        return ExportLogsServiceResponse()


@contextmanager
def grpc_receiver() -> Iterator[Received]:
    """The same over gRPC, with the services of the official protocol."""
    server = grpc.server(ThreadPoolExecutor(2))
    received = Received(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    add_TraceServiceServicer_to_server(_Traces(received), server)
    add_LogsServiceServicer_to_server(_Logs(received), server)
    server.start()
    try:
        yield received
    finally:
        server.stop(None)


@contextmanager
def otlp_receiver() -> Iterator[Received]:
    received = Received("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.requests += 1
            if received.status == 200:
                received.bodies.append(body)
                if self.path == "/v1/traces":
                    received.spans += spans_in(body)
                elif self.path == "/v1/logs":
                    received.logs += logs_in(body)
            self.send_response(received.status)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    received.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
