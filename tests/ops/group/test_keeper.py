"""The keeper's rounds over dead runs: rows reach MLflow and people; an unreachable target blocks no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.core.holder import this_process
from db.ledger import Ledger
from db.write.approvals import ApprovalRequest
from db.write.outbox import NOTIFICATION, OutboxEntry
from flows.delivery import orphaned_outbox
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.protocols import OutboxItem
from ops.group import keeper
from ops.group.keeper import Keeper
from ops.group.keeper_state import read_undelivered
from ops.integrations.mlflow_tracker import MlflowTracker
from tests.http_sink import Sink, http_sink
from tests.services import ROOT
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.spec import load_spec


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    with http_sink() as sink:
        monkeypatch.setenv("OUR_ADDRESSES", f"json://127.0.0.1:{sink.port}/hook")
        yield sink


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


def dead_run(home: Home, *overrides: str) -> str:
    """Creates a run with two undelivered rows, its start and an alarm, whose driver has returned the lease."""
    run = create_run(home, load_spec(ROOT / "tests" / "specs" / "virtual.yaml", overrides))
    home.group.mkdir(parents=True, exist_ok=True)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("driver"), 600)
        ledger.outbox.enqueue(fence, [OutboxEntry(f"{run}/alarm", NOTIFICATION, {"text": "entropy fell"}, 0)])
        ledger.leases.release(fence)
    return run


def keeper_of(home: Home, away: str = "") -> Keeper:
    def reachable() -> None:
        if away:
            raise InfrastructureError(away)

    return Keeper(home, MlflowTracker(home.tracking_uri, home.artifacts), reachable, threading.Event())


def one_round(home: Home, away: str = "") -> None:
    with Ledger.open(home.ledger) as ledger:
        keeper_of(home, away).round(ledger)


def test_people_are_notified_of_a_dead_run_while_mlflow_is_unreachable(home: Home, sink: Sink) -> None:
    run = dead_run(home, "guards.notify.addresses={env: OUR_ADDRESSES}")
    one_round(home, "MLflow does not answer")
    assert [post["message"] for post in sink.posts] == [f"- entropy fell [{run}/alarm]"]
    assert read_undelivered(home.group) == ()
    one_round(home, "MLflow does not answer")
    assert len(sink.posts) == 1, "once"


def test_an_undeliverable_notification_is_reported_and_kept(
    home: Home, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dead_run(home, "guards.notify.addresses={env: OUR_ADDRESSES}")
    monkeypatch.delenv("OUR_ADDRESSES")
    one_round(home)
    (left,) = read_undelivered(home.group)
    assert (left.run, left.rows, left.failures) == (run, 1, 1) and "OUR_ADDRESSES is not set" in left.reason
    monkeypatch.setenv("OUR_ADDRESSES", f"json://127.0.0.1:{sink.port}/hook")
    one_round(home)
    assert len(sink.posts) == 1 and read_undelivered(home.group) == ()


def test_a_retry_for_one_address_does_not_repeat_the_message_to_another(
    home: Home, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphaned_outbox, "FIRST_DELAY", 0.0)
    run = dead_run(home, "guards.notify.addresses={env: OUR_ADDRESSES}")
    with http_sink() as refusing, Ledger.open(home.ledger) as ledger:
        refusing.status = 500
        monkeypatch.setenv("OUR_ADDRESSES", " ".join(f"json://127.0.0.1:{each.port}/hook" for each in (sink, refusing)))
        patient = keeper_of(home)
        for _ in range(3):
            patient.round(ledger)
        assert (len(sink.posts), len(refusing.posts)) == (1, 3)
        assert [(left.run, left.failures) for left in read_undelivered(home.group)] == [(run, 3)]
        term = ledger.overview.line(run).term
        refusing.status = 200
        patient.round(ledger)
        assert (len(sink.posts), len(refusing.posts)) == (1, 4) and read_undelivered(home.group) == ()
        assert ledger.overview.line(run).term == term + 1


def test_an_address_that_never_answers_extends_the_audit_chain_only_to_a_limit(
    home: Home, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphaned_outbox, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(keeper, "LEASED_TRIES", 3)
    run = dead_run(home, "guards.notify.addresses={env: OUR_ADDRESSES}")
    sink.status = 500
    with Ledger.open(home.ledger) as ledger:
        before = ledger.overview.line(run).term
        patient = keeper_of(home)
        for _ in range(6):
            patient.round(ledger)
        assert ledger.overview.line(run).term == before + 3
    (left,) = read_undelivered(home.group)
    assert left.rows == 1 and " 3 attempts" in left.reason and "address 1 of 1" in left.reason


class Refusing:
    """A tracker that answers but refuses rows until `takes` is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.takes = False

    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> dict[str, str]:
        self.asked += 1
        if not self.takes:
            raise InfrastructureError("the experiment is deleted")
        return {items[0].key: "a run"}


def test_refused_rows_cost_a_limited_number_of_leases(home: Home, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphaned_outbox, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(keeper, "LEASED_TRIES", 3)
    run = dead_run(home, "guards.notify.addresses={env: OUR_ADDRESSES}")
    tracker = Refusing()
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("driver"), 600)
        ledger.outbox.enqueue(fence, [OutboxEntry(f"{run}/run", "run", {}, 0)])
        ledger.leases.release(fence)
        before = ledger.overview.line(run).term
        patient = Keeper(home, tracker, lambda: None, threading.Event())
        for _ in range(6):
            patient.round(ledger)
        assert len(sink.posts) == 1, "people are notified anyway"
        assert (tracker.asked, ledger.overview.line(run).term) == (3, before + 3 + 1)
        (left,) = read_undelivered(home.group)
        assert left.rows == 1 and " 3 attempts" in left.reason and "experiment is deleted" in left.reason
        tracker.takes = True
        Keeper(home, tracker, lambda: None, threading.Event()).round(ledger)
        assert ledger.outbox.counts(run) == (0, 1)


class TakesOneBatch:
    """A tracker that takes one batch of rows per attempt and refuses the rest."""

    def __init__(self) -> None:
        self.asked = 0

    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> dict[str, str]:
        self.asked += 1
        if self.asked % 2 == 0:
            raise InfrastructureError("429 Too Many Requests")
        return {}


def test_a_partial_delivery_resets_the_number_of_failures(
    home: Home, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphaned_outbox, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(keeper, "LEASED_TRIES", 2)
    run = dead_run(home)
    tries = 5
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("driver"), 600)
        ledger.runs.set_mlflow_run(fence, "a run")
        rows = tries * orphaned_outbox.BATCH
        ledger.outbox.enqueue(fence, [OutboxEntry(f"{run}/{n}", "tags", {}, 0) for n in range(rows)])
        ledger.leases.release(fence)
        patient = Keeper(home, TakesOneBatch(), lambda: None, threading.Event())
        for _ in range(tries):
            patient.round(ledger)
        assert ledger.outbox.counts(run) == (0, rows)


class Broken:
    """A tracker that delivers one run's rows and fails on the other's."""

    def __init__(self, broken: str) -> None:
        self.broken = broken
        self.told = list[str]()

    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> dict[str, str]:
        if items[0].run == self.broken:
            raise KeyError("number")
        self.told.append(items[0].run)
        return {item.key: "a run" for item in items}


def test_an_unexpected_error_affects_only_its_own_run(home: Home, sink: Sink) -> None:
    first = dead_run(home)
    second = dead_run(home)
    with Ledger.open(home.ledger) as ledger:
        for run in (first, second):
            fence = ledger.leases.acquire(run, this_process("driver"), 600)
            ledger.outbox.enqueue(fence, [OutboxEntry(f"{run}/run", "run", {}, 0)])
            ledger.leases.release(fence)
        tracker = Broken(first)
        Keeper(home, tracker, lambda: None, threading.Event()).round(ledger)
    assert tracker.told == [second]
    reasons = {left.run: left.reason for left in read_undelivered(home.group)}
    assert reasons[first] == "KeyError: 'number'" and "KeyError" not in reasons[second]


def test_a_spec_that_cannot_be_read_affects_only_its_own_run(
    home: Home, sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = dead_run(home)
    run = dead_run(home)
    told = list[str]()

    def tell(ledger: Ledger, lost: str) -> None:
        if lost == broken:
            raise ConfigurationError("rollout.kind: unknown key")
        told.append(lost)

    monkeypatch.setattr(keeper, "lost_runs", lambda ledger: [broken, run])
    monkeypatch.setattr(keeper, "runs_to_settle", lambda ledger: [broken, run])
    monkeypatch.setattr(keeper, "tell_lost", tell)
    monkeypatch.setattr(keeper, "settle", tell)
    one_round(home, "nowhere")
    assert told == [run, run] and f"{broken}: rollout.kind: unknown key" in caplog.text


class Slow:
    """A tracker that takes longer for a batch than the keeper may hold the lease."""

    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> dict[str, str]:
        time.sleep(2 * orphaned_outbox.SLICE_SECONDS)
        return {}


def test_a_slow_tracker_gets_few_rows_before_the_lease_is_returned(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphaned_outbox, "SLICE_SECONDS", 0.05)
    run = dead_run(home)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("driver"), 600)
        ledger.runs.set_mlflow_run(fence, "a run")
        ledger.outbox.enqueue(fence, [OutboxEntry(f"{run}/{n}", "tags", {}, 0) for n in range(50)])
        ledger.leases.release(fence)
        Keeper(home, Slow(), lambda: None, threading.Event()).round(ledger)
        assert ledger.outbox.counts(run) == (50 - orphaned_outbox.BATCH, orphaned_outbox.BATCH)


def test_a_run_with_a_driver_is_left_alone(home: Home, sink: Sink) -> None:
    run = dead_run(home, "guards.notify.addresses={env: OUR_ADDRESSES}")
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(run, this_process("driver"), 600)
        one_round(home)
    assert sink.posts == []


def test_a_round_records_the_defaults_of_deadlines_that_have_passed(home: Home) -> None:
    run = dead_run(home)
    with Ledger.open(home.ledger) as ledger:
        late = ledger.approvals.ask(ApprovalRequest(run, "late", "iterations", "on?", run, seconds=0.0))
        early = ledger.approvals.ask(ApprovalRequest(run, "early", "iterations", "on?", run, seconds=3600.0))
    one_round(home, "nowhere")
    with Ledger.open(home.ledger) as ledger:
        done = ledger.approvals.find(late.id)
        assert (done.decision, done.decided_by) == ("rejected", "deadline")
        assert ledger.approvals.find(early.id).decision is None
