"""Whether and where traces and logs are sent. Off unless `YATT_OTLP=1`: an address alone sends nothing.

Consumes the environment; produces `TracingSettings`. The address and the protocol are OpenTelemetry's own variables. Headers,
which may hold secrets, are read by the exporters from each process's environment and are never passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args
from urllib.parse import urlsplit

from yatt_core.errors import ConfigurationError

SWITCH = "YATT_OTLP"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
Protocol = Literal["http/protobuf", "grpc"]
DEFAULT: dict[Protocol, str] = {"http/protobuf": "http://127.0.0.1:4318", "grpc": "http://127.0.0.1:4317"}
ON = frozenset({"1", "true", "yes", "on"})
OFF = frozenset({"", "0", "false", "no", "off"})
PACKAGE = "opentelemetry.exporter.otlp.proto"


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Where traces and logs are sent."""

    endpoint: str
    protocol: Protocol


def tracing_settings(environment: Mapping[str, str]) -> TracingSettings | None:
    """Returns the settings; None if tracing is off. Raises `ConfigurationError`."""
    switch = environment.get(SWITCH, "").strip().lower()
    if switch in OFF:
        return None
    if switch not in ON:
        raise ConfigurationError(
            f"{SWITCH}: expected 1, true, yes or on, or 0, false, no or off (given: {switch!r:.40})"
        )
    given = environment.get(PROTOCOL) or "http/protobuf"
    protocol = next((known for known in get_args(Protocol) if known == given), None)
    if protocol is None:
        raise ConfigurationError(f"{PROTOCOL}: expected http/protobuf or grpc (given: {given!r:.40})")
    endpoint = environment.get(ENDPOINT) or DEFAULT[protocol]
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(f"{ENDPOINT}: expected an address such as {DEFAULT[protocol]}") from None
    if "@" in endpoint:
        raise ConfigurationError(f"{ENDPOINT}: must not contain a password; put it into OTEL_EXPORTER_OTLP_HEADERS")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"{ENDPOINT}: expected an address such as {DEFAULT[protocol]} (given: {endpoint!r:.80})"
        )
    if not _installed():
        raise ConfigurationError(f"{SWITCH}: OpenTelemetry's exporters are not installed; pip install 'yatt[otel]'")
    return TracingSettings(endpoint, protocol)


def _installed() -> bool:
    try:
        return find_spec(f"{PACKAGE}.http") is not None and find_spec(f"{PACKAGE}.grpc") is not None
    except ModuleNotFoundError:
        return False
