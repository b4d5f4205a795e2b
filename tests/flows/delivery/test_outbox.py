"""Delivery of the outbox: in order, each row once, whatever the tracker does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from db.core.engine import Fence
from db.core.errors import LedgerUnavailable
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.outbox import NOTIFICATION, PEOPLE, REFUSED, Deliveries, OutboxEntry
from flows.delivery import outbox
from flows.delivery.notifications import NotificationDeliverer
from flows.delivery.outbox import (
    Deliverer,
    OutboxPump,
    TrackerDeliverer,
    deliver_pending,
    mlflow_place,
    tracking_run,
)
from flows.run.protocols import Notice, NotificationResult, OutboxItem
from tests.waiting import wait_until
from yatt_core.errors import InfrastructureError, RefusedRowError
from yatt_core.spec.sections.guards import NotifySpec


class RecordingTracker:
    """Keeps what arrives; refuses while `down` is set."""

    def __init__(self) -> None:
        self.arrived: list[OutboxItem] = []
        self.down = False

    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        if self.down:
            raise InfrastructureError("the tracker is away")
        self.arrived += items
        return {item.key: self.name(item) for item in items if item.kind == "run"}

    @staticmethod
    def name(item: OutboxItem) -> str:
        return "tracking-run" if item.tracking_run is None else f"9/nested by {item.key.replace('/', ' ')}"


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[str, Ledger, Fence]]:
    address = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.open(address) as ledger:
        run = ledger.runs.create("toy", {}, "digest", 1).id
        fence = ledger.leases.acquire(run, this_process(), 60)
        rows = [OutboxEntry(f"{run}/run", "run", {}, 1)]
        rows += [OutboxEntry(f"{run}/tag{i}", "tags", {"i": str(i)}, i) for i in range(250)]
        ledger.outbox.enqueue(fence, rows)
        yield address, ledger, fence


def test_the_run_is_created_first_and_everything_arrives_in_order(filled: tuple[str, Ledger, Fence]) -> None:
    _, ledger, fence = filled
    tracker = RecordingTracker()
    deliver_pending(ledger, fence, tracker)
    assert ledger.runs.find(fence.run).mlflow_run_id == "tracking-run"
    while deliver_pending(ledger, fence, tracker):
        pass
    assert [item.at_ms for item in tracker.arrived] == [1, *range(250)]
    assert {item.tracking_run for item in tracker.arrived[1:]} == {"tracking-run"}
    assert ledger.outbox.counts(fence.run) == (0, 251)


def test_rows_wait_while_the_tracker_is_unreachable(filled: tuple[str, Ledger, Fence]) -> None:
    _, ledger, fence = filled
    tracker = RecordingTracker()
    tracker.down = True
    with pytest.raises(InfrastructureError):
        deliver_pending(ledger, fence, tracker)
    assert ledger.outbox.counts(fence.run) == (251, 0)
    tracker.down = False
    while deliver_pending(ledger, fence, tracker):
        pass
    assert len(tracker.arrived) == 251


class ParticularTracker(RecordingTracker):
    """Refuses rows of some contents for good."""

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        for item in items:
            if item.body.get("i") in ("3", "120"):
                raise RefusedRowError(f"\x1b[31m{item.body['i']} is no tag")
        return super().deliver(items)


def test_a_row_that_is_refused_for_what_it_says_holds_up_no_other(filled: tuple[str, Ledger, Fence]) -> None:
    _, ledger, fence = filled
    tracker = ParticularTracker()
    while deliver_pending(ledger, fence, tracker):
        pass
    assert [item.at_ms for item in tracker.arrived] == [1, *(at for at in range(250) if at not in (3, 120))]
    assert ledger.outbox.counts(fence.run) == (0, 251)
    assert ledger.outbox.external_id(f"{fence.run}/tag3") == f"{REFUSED}\\x1b[31m3 is no tag"
    assert ledger.run_list.outbox_refused([fence.run]) == {fence.run: 2}
    assert ledger.run_list.outbox_pending([fence.run]) == {}


def test_a_tracking_run_that_is_refused_is_asked_for_again(filled: tuple[str, Ledger, Fence]) -> None:
    _, ledger, fence = filled
    tracker = RecordingTracker()
    with (
        mock.patch.object(tracker, "deliver", side_effect=RefusedRowError("no such experiment")),
        pytest.raises(RefusedRowError),
    ):
        deliver_pending(ledger, fence, tracker)
    assert ledger.outbox.counts(fence.run) == (251, 0)


def test_the_pump_drains_when_it_stops(filled: tuple[str, Ledger, Fence]) -> None:
    address, ledger, fence = filled
    tracker = RecordingTracker()
    pump = OutboxPump(address, fence, TrackerDeliverer(tracker))
    pump.start()
    assert pump.stop(drain_seconds=30)
    assert len(tracker.arrived) == 251
    assert ledger.outbox.counts(fence.run)[0] == 0


def test_the_pump_holds_its_first_delivery_until_it_is_released_or_told_to_finish(
    filled: tuple[str, Ledger, Fence],
) -> None:
    address, _, fence = filled
    tracker = RecordingTracker()
    pump = OutboxPump(address, fence, TrackerDeliverer(tracker), hold_seconds=3600.0)
    pump.start()
    assert not pump.join(0.5) and not tracker.arrived
    pump.release()
    assert pump.stop(drain_seconds=30)
    assert len(tracker.arrived) == 251
    late = RecordingTracker()
    pump = OutboxPump(address, fence, TrackerDeliverer(late), hold_seconds=3600.0)
    pump.start()
    assert pump.stop(drain_seconds=30) and not late.arrived


def test_the_pump_reports_undelivered_rows(filled: tuple[str, Ledger, Fence]) -> None:
    address, ledger, fence = filled
    tracker = RecordingTracker()
    tracker.down = True
    pump = OutboxPump(address, fence, TrackerDeliverer(tracker))
    pump.start()
    assert not pump.stop(drain_seconds=30)
    assert ledger.outbox.counts(fence.run) == (251, 0)


def test_rows_whose_delivery_was_not_recorded_are_sent_again(
    filled: tuple[str, Ledger, Fence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows were sent, but the ledger was locked for too long to record that; then it answers again."""
    address, ledger, fence = filled
    tracker = RecordingTracker()
    book = Deliveries.delivered
    failures = iter([True, False, True])

    def locked(*arguments: Any) -> None:
        if next(failures, False):
            raise LedgerUnavailable("database is locked")
        book(*arguments)

    monkeypatch.setattr(Deliveries, "delivered", locked)
    pump = pumped(address, fence, TrackerDeliverer(tracker), monkeypatch)
    wait_until(lambda: ledger.outbox.counts(fence.run) == (0, 251), seconds=30.0)
    assert pump.stop(30)
    assert list(dict.fromkeys(item.key for item in tracker.arrived))[1:] == [f"{fence.run}/tag{i}" for i in range(250)]


def test_an_unreachable_ledger_is_not_asked_for_more(
    filled: tuple[str, Ledger, Fence], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(doing: str) -> Callable[..., None]:
        def fail(*arguments: object, **named: object) -> None:
            raise LedgerUnavailable(f"away while {doing}")

        return fail

    _, ledger, fence = filled
    for name in ("delivered", "give_back"):
        monkeypatch.setattr(ledger.outbox, name, failing(name))
    with pytest.raises(LedgerUnavailable, match="away while delivered"):
        deliver_pending(ledger, fence, RecordingTracker())


def test_claimed_rows_do_not_count_as_delivered(filled: tuple[str, Ledger, Fence]) -> None:
    address, ledger, fence = filled
    ledger.outbox.claim(fence, 1)
    ledger.runs.set_mlflow_run(fence, "tracking-run")
    pump = OutboxPump(address, fence, TrackerDeliverer(RecordingTracker()))
    pump.start()
    assert not pump.stop(drain_seconds=30)
    assert ledger.outbox.counts(fence.run) == (1, 250)


def pumped(address: str, fence: Fence, deliverer: Deliverer, monkeypatch: pytest.MonkeyPatch) -> OutboxPump:
    monkeypatch.setattr(outbox, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(outbox, "POLL_SECONDS", 0.02)
    pump = OutboxPump(address, fence, deliverer)
    pump.start()
    return pump


def lose_answers(monkeypatch: pytest.MonkeyPatch, name: str, losses: Iterator[bool]) -> None:
    """Makes a write succeed although its answer is lost."""
    write = getattr(Deliveries, name)

    def and_lost(*arguments: Any, **named: Any) -> Any:
        answer = write(*arguments, **named)
        if next(losses, False):
            raise LedgerUnavailable("the connection broke")
        return answer

    monkeypatch.setattr(Deliveries, name, and_lost)


@pytest.mark.parametrize("lost", ["claim", "delivered"])
def test_a_lost_answer_from_the_ledger_does_not_end_delivery(
    filled: tuple[str, Ledger, Fence], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    address, ledger, fence = filled
    tracker = RecordingTracker()
    lose_answers(monkeypatch, lost, iter([True, False, True]))
    pump = pumped(address, fence, TrackerDeliverer(tracker), monkeypatch)
    wait_until(lambda: ledger.outbox.counts(fence.run) == (0, 251), seconds=30.0)
    assert pump.stop(30)
    assert len(tracker.arrived) == len({item.key for item in tracker.arrived}) == 251


@pytest.mark.parametrize("lost", ["claim", "delivered"])
def test_people_are_notified_once_although_the_ledgers_answer_was_lost(
    filled: tuple[str, Ledger, Fence], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    address, ledger, fence = filled
    lose_answers(monkeypatch, lost, iter([True]))
    people = People()
    pump = pumped(address, fence, NotificationDeliverer(people, NotifySpec(interval_seconds=0.0)), monkeypatch)
    for name in ("a", "b"):
        ledger.outbox.enqueue(fence, [OutboxEntry(name, NOTIFICATION, {"text": name}, 0)])
        wait_until(lambda: ledger.outbox.counts(fence.run, lane=PEOPLE)[0] == 0, seconds=30.0)
    assert pump.stop(30)
    assert people.heard == ["a", "b"]


class People:
    """A notifier whose recipients accept every notice."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def notify(self, run: str, notices: Sequence[Notice]) -> NotificationResult:
        self.heard += [notice.key for notice in notices]
        return NotificationResult(frozenset(notice.key for notice in notices), ())


def test_a_failing_tracker_is_retried(filled: tuple[str, Ledger, Fence], monkeypatch: pytest.MonkeyPatch) -> None:
    address, ledger, fence = filled
    tracker = RecordingTracker()
    failures = iter([True, False, True])
    deliver = tracker.deliver

    def breaking(items: list[OutboxItem]) -> Mapping[str, str]:
        if next(failures, False):
            raise KeyError("number")
        return deliver(items)

    tracker.deliver = breaking  # type: ignore[method-assign]
    pump = pumped(address, fence, TrackerDeliverer(tracker), monkeypatch)
    wait_until(lambda: ledger.outbox.counts(fence.run) == (0, 251), seconds=30.0)
    assert pump.stop(30)


def test_a_branch_has_its_own_tracking_run(filled: tuple[str, Ledger, Fence]) -> None:
    _, ledger, fence = filled
    run = fence.run
    rows = [OutboxEntry(f"{run}/b1/run", "run", {}, 1), OutboxEntry(f"{run}/b1/tags", "tags", {"of": "branch"}, 2)]
    ledger.outbox.enqueue(fence, [*rows, OutboxEntry(f"{run}/e2/status", "status", {"status": "RUNNING"}, 3)])
    ledger.outbox.enqueue(fence, [OutboxEntry(f"{run}/b2/tags", "tags", {"older": "than the nesting"}, 4)])
    tracker = RecordingTracker()
    while deliver_pending(ledger, fence, tracker):
        pass
    ends = {item.key.removeprefix(run): item.tracking_run for item in tracker.arrived[-4:]}
    nested = f"nested by {run} b1 run"
    assert ends == {
        "/b1/run": "tracking-run", "/b1/tags": nested, "/e2/status": "tracking-run", "/b2/tags": "tracking-run",
    }  # fmt: skip
    assert (tracking_run(ledger, run, 1), mlflow_place(ledger, run, 1)) == (nested, f"9/{nested}")
    assert ledger.runs.find(run).mlflow_run_id == "tracking-run"


def test_only_rows_after_a_failed_one_are_given_back(
    filled: tuple[str, Ledger, Fence],
) -> None:
    _, ledger, fence = filled
    tracker = RecordingTracker()
    deliver = tracker.deliver

    def unreachable_after_the_creation(items: list[OutboxItem]) -> Mapping[str, str]:
        made = deliver(items)
        tracker.down = True
        return made

    tracker.deliver = unreachable_after_the_creation  # type: ignore[method-assign]
    with pytest.raises(InfrastructureError):
        deliver_pending(ledger, fence, tracker)
    assert ledger.outbox.counts(fence.run) == (250, 1)
    tracker.down = False
    while deliver_pending(ledger, fence, RecordingTracker()):
        pass
    assert ledger.outbox.counts(fence.run) == (0, 251)
