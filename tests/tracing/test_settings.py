"""Whether traces are sent, and where: only if asked for, and never because an address happens to be set."""

from __future__ import annotations

import pytest

from yatt_core.errors import ConfigurationError
from yatt_core.tracing.settings import TracingSettings, tracing_settings

ADDRESS = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize("switch", [{}, {"YATT_OTLP": ""}, {"YATT_OTLP": "0"}, {"YATT_OTLP": "off"}])
def test_an_address_alone_sends_nothing(switch: dict[str, str]) -> None:
    others = {ADDRESS: "http://collector:4318", "OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "false"}
    assert tracing_settings(switch | others) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, TracingSettings("http://127.0.0.1:4318", "http/protobuf")),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, TracingSettings("http://127.0.0.1:4317", "grpc")),
        ({ADDRESS: "https://collector:4318"}, TracingSettings("https://collector:4318", "http/protobuf")),
    ],
)
def test_the_standard_variables_say_where(given: dict[str, str], expected: TracingSettings) -> None:
    assert tracing_settings({"YATT_OTLP": "1", **given}) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"YATT_OTLP": "maybe"}, "YATT_OTLP: expected 1, true"),
        ({"YATT_OTLP": "1", ADDRESS: "http://[::1"}, f"{ADDRESS}: expected an address"),
        ({"YATT_OTLP": "1", ADDRESS: "collector:4318"}, f"{ADDRESS}: expected an address"),
        ({"YATT_OTLP": "1", ADDRESS: "http://me:secret@collector:4318"}, f"{ADDRESS}: must not contain a password"),
        ({"YATT_OTLP": "1", ADDRESS: "localhost"}, rf"{ADDRESS}: expected an address .* \(given: 'localhost'\)"),
        ({"YATT_OTLP": "1", ADDRESS: "me:secret@collector"}, f"{ADDRESS}: must not contain a password"),
        ({"YATT_OTLP": "1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "expected http/protobuf or grpc"),
    ],
)
def test_a_mistake_names_the_variable(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        tracing_settings(given)
    assert "secret" not in str(caught.value)
