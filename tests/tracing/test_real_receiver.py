"""Spans sent to a real receiver that speaks OTLP: MLflow's server, which stores them and gives them back."""

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient

from tests.ops.integrations.test_mlflow_server import server as mlflow_server
from yatt_core.tracing.identity import attempt_place, iteration_place
from yatt_core.tracing.settings import TracingSettings
from yatt_core.tracing.spans import begin_tracing, end_tracing, record_span, span

pytestmark = pytest.mark.verify
server = mlflow_server
START = 1_700_000_000_000


def test_a_real_receiver_reads_an_iteration_as_one_trace(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MlflowClient(server)
    experiment = client.create_experiment("traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-mlflow-experiment-id={experiment}")
    begin_tracing(TracingSettings(server, "http/protobuf"), {"yatt.run": "toy-1"})
    root = iteration_place("owner", 0, 7)
    with span("learn", root, place=attempt_place(root, "learn", 1), attributes={"yatt.attempt": 1}), span("inner"):
        pass
    record_span("iteration 7", root, None, START, START + 5000, "", {"yatt.iteration": 7})
    assert end_tracing(60.0) == 0, "all were accepted"
    (trace,) = client.search_traces(locations=[experiment])
    spans = {each.name: each for each in trace.data.spans}
    assert spans.keys() == {"iteration 7", "learn", "inner"}
    assert spans["learn"].parent_id == spans["iteration 7"].span_id
    assert spans["inner"].parent_id == spans["learn"].span_id
    assert f"{root.trace_id:032x}" in trace.info.trace_id
