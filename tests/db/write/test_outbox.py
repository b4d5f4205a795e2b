"""The outbox: rows are in order, claimed once per term, delivered once."""

from __future__ import annotations

import pytest

from db.core.engine import Fence
from db.core.errors import Conflict, OutOfOrder
from db.ledger import Ledger
from db.write.outbox import MLFLOW, NOTIFICATION, PEOPLE, OutboxEntry, PendingDelivery
from tests.db.tools import SimulatedClock, commit_of, commit_through, holder


def entry(name: str) -> OutboxEntry:
    return OutboxEntry(f"toy-1/{name}", "tags", {"name": name}, 7)


def test_rows_come_in_order_and_are_claimed_once(ledger: Ledger, run: str, fence: Fence) -> None:
    assert ledger.outbox.enqueue(fence, [entry("z"), entry("a")]) == 2
    commit_through(ledger, fence, range(3))
    first = ledger.outbox.claim(fence, limit=3)
    rest = ledger.outbox.claim(fence)
    assert [row.id for row in first + rest] == [
        "toy-1/z",
        "toy-1/a",
        "toy-1/b0/i0/metrics",
        "toy-1/b0/i1/metrics",
        "toy-1/b0/i2/metrics",
    ]
    assert ledger.outbox.claim(fence) == []
    assert ledger.outbox.counts(run) == (5, 0)


def test_a_metrics_row_gets_its_points_when_claimed(ledger: Ledger, fence: Fence) -> None:
    ledger.commits.commit(fence, commit_of(0))
    row = ledger.outbox.claim(fence)[0]
    assert (row.kind, row.logged_at_ms) == ("metrics", 1000)
    assert row.payload == {"branch": 0, "iteration": 0, "metrics": {"reward": 0.0, "seconds": 1.5}}


def test_an_entry_enqueued_again_is_one_entry(ledger: Ledger, run: str, fence: Fence) -> None:
    ledger.outbox.enqueue(fence, [entry("params")])
    assert ledger.outbox.enqueue(fence, [entry("params"), entry("tags")]) == 1
    assert ledger.outbox.counts(run) == (2, 0)
    assert ledger.outbox.enqueue(fence, []) == 0
    other = ledger.leases.acquire(ledger.runs.create("toy", {}, "d", 1).id, holder("other"), 10)
    with pytest.raises(Conflict, match=r"toy-1/params.* run toy-1"):
        ledger.outbox.enqueue(other, [entry("params")])


def test_delivery_is_recorded_once_with_the_trackers_id(ledger: Ledger, run: str, fence: Fence) -> None:
    ledger.outbox.enqueue(fence, [entry("run"), entry("tags")])
    with pytest.raises(OutOfOrder, match=r" 0 of \['toy-1/run'\].* term 1"):
        ledger.outbox.delivered(fence, ["toy-1/run"])
    ledger.outbox.claim(fence, limit=1)
    with pytest.raises(OutOfOrder, match=r" 1 of \['toy-1/run', 'toy-1/tags'\].* term 1"):
        ledger.outbox.delivered(fence, ["toy-1/run", "toy-1/tags"])
    assert ledger.outbox.counts(run) == (2, 0)
    ledger.outbox.delivered(fence, ["toy-1/run"], external_id="mlflow-7")
    with pytest.raises(OutOfOrder):
        ledger.outbox.delivered(fence, ["toy-1/run"], external_id="mlflow-8")
    assert ledger.outbox.external_id("toy-1/run") == "mlflow-7"
    assert ledger.outbox.counts(run) == (1, 1)


@pytest.mark.postgresql
def test_rows_claimed_by_a_dead_term_are_claimed_again_with_their_count(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    ledger.outbox.enqueue(fence, [entry("run"), entry("tags")])
    assert [row.claims for row in ledger.outbox.claim(fence, limit=1)] == [0]
    clock.advance(60)
    second = ledger.leases.acquire(run, holder("second"), ttl_seconds=10)
    assert [(row.id, row.claims) for row in ledger.outbox.claim(second)] == [("toy-1/run", 1), ("toy-1/tags", 0)]


def test_a_row_given_back_is_first_again(ledger: Ledger, fence: Fence) -> None:
    ledger.outbox.enqueue(fence, [entry("a"), entry("b"), entry("c")])
    claimed = ledger.outbox.claim(fence, limit=2)
    ledger.outbox.delivered(fence, [claimed[0].id])
    ledger.outbox.give_back(fence)
    assert [(row.id, row.claims) for row in ledger.outbox.claim(fence)] == [("toy-1/b", 1), ("toy-1/c", 0)]


def test_rows_are_given_back_by_kind(ledger: Ledger, fence: Fence) -> None:
    told = OutboxEntry("toy-1/alarm", NOTIFICATION, {"text": "entropy fell"}, 7)
    ledger.outbox.enqueue(fence, [entry("a"), told])
    for lane in (MLFLOW, PEOPLE):
        ledger.outbox.claim(fence, lane=lane)
    ledger.outbox.give_back(fence, lane=PEOPLE)
    assert ledger.outbox.claim(fence) == [] and len(ledger.outbox.claim(fence, lane=PEOPLE)) == 1
    ledger.outbox.give_back(fence)
    assert [row.id for row in ledger.outbox.claim(fence)] == ["toy-1/a"]


def test_runs_with_undelivered_rows_are_listed_with_their_holder(
    ledger: Ledger, clock: SimulatedClock, run: str, fence: Fence
) -> None:
    assert ledger.outbox.undelivered() == ()
    ledger.outbox.enqueue(fence, [entry("a"), entry("b")])
    idle = ledger.runs.create("idle", {"seed": 0}, "digest", target_iterations=100).id
    ledger.runs.create("quiet", {"seed": 0}, "digest", target_iterations=100)
    other = ledger.leases.acquire(idle, holder("second"), ttl_seconds=10)
    ledger.outbox.enqueue(other, [OutboxEntry(f"{idle}/x", "tags", {}, 7)])
    ledger.leases.release(other)
    clock.advance(25)
    assert ledger.outbox.undelivered() == (
        PendingDelivery(idle, 1, None, 25.0),
        PendingDelivery(run, 2, holder("first"), 15.0),
    )
    ledger.leases.renew(fence, ttl_seconds=10)
    ledger.outbox.claim(fence)
    assert ledger.outbox.undelivered()[1] == PendingDelivery(run, 2, holder("first"), -10.0), (
        "a claimed row is not yet delivered"
    )
    ledger.outbox.delivered(fence, ["toy-1/a", "toy-1/b"])
    assert [left.run for left in ledger.outbox.undelivered()] == [idle]
