"""What the span of an attempt at a phase says about its outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.driver.tracing import SessionTracing
from tests.db.tools import SimulatedClock, holder
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


@pytest.mark.parametrize(("seconds_each", "again"), [(1, {0, 1, 2, 3, 4, 5}), (20, {3, 4, 5})])
def test_what_a_killed_driver_may_have_had_queued_is_sent_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_each: int, again: set[int]
) -> None:
    time = SimulatedClock()
    with otlp_receiver() as received, Ledger.open(tmp_path / "ledger.db", clock=time) as ledger:
        run = ledger.runs.create("toy", {}, "digest", 9).id
        killed = ledger.leases.acquire(run, holder("killed"), 60.0)
        for iteration in range(5):
            attempt = ledger.phases.plan(killed, 0, iteration, "commit" if iteration else "commit_start")
            ledger.phases.dispatch(killed, attempt)
            time.advance(seconds_each)
            ledger.phases.finish(killed, attempt, {}, seconds_each)
        ledger.phases.plan(killed, 0, 5, "learn")
        time.advance(100)
        monkeypatch.setenv("YATT_OTLP", "1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.address)
        tracing = SessionTracing(ledger, ledger.leases.acquire(run, holder("next", pid=2), 60.0), 0, HandClock())
        with tracing.phase(0, 4, "recover", 1):
            pass
        assert tracing.end() == 0
    assert {span.attributes["yatt.iteration"] for span in received.spans} == again
    assert {span.name for span in received.spans} >= {f"iteration {each}" for each in again if each < 5}
