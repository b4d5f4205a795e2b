"""What the span of an attempt at a phase says about its outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.driver.tracing import SessionTracing
from tests.db.tools import holder
from tests.flows.opened import HandClock
from tests.tracing.receiver import otlp_receiver


def test_the_span_of_a_failed_attempt_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_receiver() as received, Ledger.open(tmp_path / "ledger.db") as ledger:
        monkeypatch.setenv("YATT_OTLP", "1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.address)
        run = ledger.runs.create("toy", {}, "digest", 3).id
        tracing = SessionTracing(ledger, ledger.leases.acquire(run, holder("driver"), 60.0), 0, HandClock())
        with pytest.raises(KeyError), tracing.phase(0, 1, "learn", 1):
            raise KeyError
        with tracing.phase(0, 1, "learn", 2):
            pass
        assert tracing.end() == 0
    outcomes = {each.attributes["yatt.attempt"]: each.attributes["yatt.outcome"] for each in received.named("learn")}
    assert outcomes == {1: "failed", 2: "done"}
