"""A stale driver writes nothing, whichever write it tries."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

import pytest

from db.core.engine import Fence
from db.core.errors import Fenced
from db.core.queue_rows import AllocationRow, ForecastRow
from db.ledger import Ledger
from db.write.approvals import ApprovalRequest
from db.write.checkpoint_requests import CheckpointRequest
from db.write.outbox import OutboxEntry
from db.write.phases import Attempt
from db.write.pipelines import JobRow, NewPipeline
from db.write.records import CheckpointRow, ChoiceRow, DecisionRow, ShardRow, WaveRow
from db.write.scheduling import Grant
from db.write.waits import WaitRow
from tests.db.tools import SimulatedClock, commit_of, everything, holder

SHARD = ShardRow(0, 1, 0, 0, 1, "folder", "sha", 4, 9, b"d" * 32, {"reward": 1.0})
OLD_SHARD = replace(SHARD, shard=1)
CHECKPOINT = CheckpointRow("toy-1", 0, 1, 1, "folder", "sha", 10, "weights", 0.1)
OLD_CHECKPOINT = CheckpointRow("toy-1", 0, 0, 1, "folder", "sha", 10, "weights", 0.1)
PLANNED, DISPATCHED = (Attempt("toy-1", 0, 1, phase, 1) for phase in ("collect", "learn"))

ALARM = {
    "id": "0/1/entropy", "rule": "entropy", "branch": 0, "iteration": 0, "first": 0, "action": "alert", "text": "why",
    "evidence": {},
}  # fmt: skip

QUESTION = ApprovalRequest("toy-1", "iterations-1", "iterations", "go on?", run="toy-1")
WAIT = WaitRow("toy-1", "a judge", "status 503", 1, 2, 1, returned_at=3)
ASKED = CheckpointRequest("toy-1", 1, 0, 0, "")

WRITES: dict[str, Callable[[Ledger, Fence], object]] = {
    "alarms.record": lambda ledger, fence: ledger.alarms.record(fence, ALARM),
    "approvals.ask": lambda ledger, fence: ledger.approvals.ask(QUESTION, fence),
    "leases.renew": lambda ledger, fence: ledger.leases.renew(fence, 10),
    "leases.release": lambda ledger, fence: ledger.leases.release(fence),
    "leases.start_session": lambda ledger, fence: ledger.leases.start_session(fence, "id", "name"),
    "leases.end_session": lambda ledger, fence: ledger.leases.end_session(fence, "completed"),
    "runs.add_revision": lambda ledger, fence: ledger.runs.add_revision(fence, {"seed": 1}, "other", "why", 100),
    "runs.set_state": lambda ledger, fence: ledger.runs.set_state(fence, "running"),
    "runs.set_mlflow_run": lambda ledger, fence: ledger.runs.set_mlflow_run(fence, "abc"),
    "runs.start_branch": lambda ledger, fence: ledger.runs.start_branch(fence, 0, "why"),
    "phases.plan": lambda ledger, fence: ledger.phases.plan(fence, 0, 1, "sync"),
    "phases.dispatch": lambda ledger, fence: ledger.phases.dispatch(fence, PLANNED),
    "phases.finish": lambda ledger, fence: ledger.phases.finish(fence, DISPATCHED, {"tokens": 3}, 1.0),
    "phases.fail": lambda ledger, fence: ledger.phases.fail(fence, DISPATCHED, "data", "why"),
    "phases.fail_open": lambda ledger, fence: ledger.phases.fail_open(fence, "why"),
    "phases.forgive": lambda ledger, fence: ledger.phases.forgive(fence, 0, 1, "prepare", "why"),
    "records.choice": lambda ledger, fence: ledger.records.choice(fence, ChoiceRow(0, 1, "skip", {"why": "NaN"})),
    "records.shard": lambda ledger, fence: ledger.records.shard(fence, SHARD),
    "records.replace_shard": lambda ledger, fence: ledger.records.replace_shard(
        fence, replace(OLD_SHARD, folder="new")
    ),
    "records.wave": lambda ledger, fence: ledger.records.wave(fence, WaveRow(0, 1, 1, {"prompts": 8})),
    "records.settle_wave": lambda ledger, fence: ledger.records.settle_wave(fence, 0, 1, 0, {"groups": 3}),
    "records.decision": lambda ledger, fence: ledger.records.decision(fence, DecisionRow(0, 1, 1, {}, {}, {}, "why")),
    "records.decision_outcome": lambda ledger, fence: ledger.records.decision_outcome(fence, 0, 1, 0, {"seconds": 1}),
    "records.checkpoint": lambda ledger, fence: ledger.records.checkpoint(fence, CHECKPOINT),
    "records.checkpoint_pruned": lambda ledger, fence: ledger.records.checkpoint_pruned(fence, OLD_CHECKPOINT),
    "commits.commit": lambda ledger, fence: ledger.commits.commit(fence, commit_of(1)),
    "outbox.enqueue": lambda ledger, fence: ledger.outbox.enqueue(fence, [OutboxEntry("id", "run", {}, 1)]),
    "outbox.claim": lambda ledger, fence: ledger.outbox.claim(fence),
    "outbox.give_back": lambda ledger, fence: ledger.outbox.give_back(fence),
    "outbox.delivered": lambda ledger, fence: ledger.outbox.delivered(fence, ["toy-1/params"]),
    "outbox.refused": lambda ledger, fence: ledger.outbox.refused(fence, "toy-1/params", "why"),
    "waits.record": lambda ledger, fence: ledger.waits.record(fence, replace(WAIT, tries=2)),
    "waits.take_devices": lambda ledger, fence: ledger.waits.take_devices(fence),
    "waits.take": lambda ledger, fence: ledger.waits.take(fence),
    "waits.over": lambda ledger, fence: ledger.waits.over(fence),
    "checkpoint_requests.meet": lambda ledger, fence: ledger.checkpoint_requests.meet(fence, ASKED, 0),
    "deletions.delete": lambda ledger, fence: ledger.deletions.delete(fence, "ann", "why", {}),
    "events.append": lambda ledger, fence: ledger.events.append(fence.run, "note", {"a": 1}, fence),
}


@pytest.fixture
def prepared(ledger: Ledger, fence: Fence) -> Fence:
    """Prepares a state in which each of the writes changes something."""
    ledger.commits.commit(fence, commit_of(0))
    ledger.phases.plan(fence, 0, 1, "collect")
    ledger.phases.dispatch(fence, ledger.phases.plan(fence, 0, 1, "learn"))
    failed = ledger.phases.plan(fence, 0, 1, "prepare")
    ledger.phases.dispatch(fence, failed)
    ledger.phases.fail(fence, failed, "data", "why")
    ledger.records.wave(fence, WaveRow(0, 1, 0, {"prompts": 8}))
    ledger.records.decision(fence, DecisionRow(0, 1, 0, {}, {}, {}, "why"))
    ledger.records.shard(fence, OLD_SHARD)
    ledger.records.checkpoint(fence, OLD_CHECKPOINT)
    ledger.outbox.enqueue(fence, [OutboxEntry("toy-1/params", "params", {"seed": 0}, 1)])
    ledger.waits.record(fence, WAIT)
    ledger.waits.ask(fence.run)
    return fence


@pytest.mark.postgresql
@pytest.mark.parametrize("write", WRITES)
def test_a_stale_term_writes_nothing(ledger: Ledger, prepared: Fence, clock: SimulatedClock, write: str) -> None:
    ledger.outbox.claim(prepared)
    clock.advance(60)
    ledger.leases.acquire(prepared.run, holder("second"), ttl_seconds=10)
    before = everything(ledger)
    with pytest.raises(Fenced):
        WRITES[write](ledger, prepared)
    assert everything(ledger) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_holder_that_released_the_lease_writes_nothing(ledger: Ledger, prepared: Fence, write: str) -> None:
    ledger.leases.release(prepared)
    before = everything(ledger)
    with pytest.raises(Fenced):
        WRITES[write](ledger, prepared)
    assert everything(ledger) == before


@pytest.mark.parametrize("write", WRITES)
def test_the_holder_writes(ledger: Ledger, prepared: Fence, clock: SimulatedClock, write: str) -> None:
    if write in ("outbox.give_back", "outbox.delivered", "outbox.refused"):
        ledger.outbox.claim(prepared)
    if write == "leases.end_session":
        ledger.leases.start_session(prepared, "id", "name")
    if write == "deletions.delete":  # which is for a run without commits
        prepared = ledger.leases.acquire(ledger.runs.create("toy", {}, "d", 1).id, holder("first"), ttl_seconds=10)
    clock.advance(1)
    before = everything(ledger)
    WRITES[write](ledger, prepared)
    assert everything(ledger) != before


HELD = AllocationRow(
    "toy-1", 1, "main", "main", "ann", "chat", 0, "0", 0, False, 1, 1, None, None, None, None, 1, None, None, None, None,
    False, 0, 0,
)  # fmt: skip
GRANT = Grant("toy-1", "main", (0,), 0, backfilled=False)
FORECAST = ForecastRow("toy-1", 1, 1, 1, 0.9, 2, None, None, None)
JOB = JobRow("line-1", "sft", 1, "running", "key", {}, {}, "", 1, None)
OTHERS: dict[str, tuple[str, Callable[[Ledger, Fence], object]]] = {
    "pipelines.begin": ("pipeline/line-1", lambda ledger, fence: ledger.pipelines.begin(fence, "sft", "key", {}, {})),
    "pipelines.note": ("pipeline/line-1", lambda ledger, fence: ledger.pipelines.note(fence, JOB, {"run": "toy-1"})),
    "pipelines.end": ("pipeline/line-1", lambda ledger, fence: ledger.pipelines.end(fence, JOB, "done", {})),
    "pipelines.release": ("pipeline/line-1", lambda ledger, fence: ledger.pipelines.release(fence, "failed", "why")),
    "scheduling.allocate": ("queue", lambda ledger, fence: ledger.scheduling.allocate(fence, GRANT, 1)),
    "scheduling.note_driver": ("queue", lambda ledger, fence: ledger.scheduling.note_driver(fence, HELD, 1, 1, 1)),
    "scheduling.note_stop": ("queue", lambda ledger, fence: ledger.scheduling.note_stop(fence, HELD, "why", None)),
    "scheduling.ask_again": ("queue", lambda ledger, fence: ledger.scheduling.ask_again(fence, HELD, None)),
    "scheduling.release": ("queue", lambda ledger, fence: ledger.scheduling.release(fence, HELD, "ended")),
    "scheduling.unpark": ("queue", lambda ledger, fence: ledger.scheduling.unpark(fence, "toy-1")),
    "scheduling.end": ("queue", lambda ledger, fence: ledger.scheduling.end(fence, "toy-1", "ended")),
    "scheduling.note_reasons": ("queue", lambda ledger, fence: ledger.scheduling.note_reasons(fence, {"toy-1": "why"})),
    "scheduling.note_forecast": ("queue", lambda ledger, fence: ledger.scheduling.note_forecast(fence, FORECAST)),
    "a sweep's decision": ("sweep/toy-1", lambda ledger, fence: ledger.events.append("toy-1", "trial", {}, fence)),
    "a soup's choice": ("soup/toy-1", lambda ledger, fence: ledger.events.append("toy-1", "choice", {}, fence)),
    "a follower's renewal": ("suite/toy-1/held-out", lambda ledger, fence: ledger.leases.renew(fence, 10)),
    "the home's renewal": ("home", lambda ledger, fence: ledger.leases.renew(fence, 10)),
    "the home's release": ("home", lambda ledger, fence: ledger.leases.release(fence)),
}
"""The subject and the write of those who hold other leases than a run's."""


@pytest.mark.postgresql
@pytest.mark.parametrize("write", OTHERS)
def test_whoever_lost_another_lease_writes_nothing(ledger: Ledger, run: str, clock: SimulatedClock, write: str) -> None:
    subject, does = OTHERS[write]
    ledger.pipelines.create(NewPipeline("line", "digest", {}, "/", "ann"))
    fence = ledger.leases.take(subject, holder("first"), ttl_seconds=10)
    clock.advance(60)
    second = ledger.leases.take(subject, holder("second"), ttl_seconds=10)
    assert second.term == fence.term + 1
    before = everything(ledger)
    with pytest.raises(Fenced, match=f"term {fence.term} has ended"):
        does(ledger, fence)
    assert everything(ledger) == before
    ledger.leases.release(second)
    before = everything(ledger)
    with pytest.raises(Fenced, match=f"term {second.term} was released"):
        does(ledger, second)
    assert everything(ledger) == before


@pytest.mark.parametrize("write", ["pipelines.begin", "pipelines.end", "scheduling.end", "a sweep's decision"])
def test_a_lease_gives_no_right_to_another_subject(ledger: Ledger, run: str, write: str) -> None:
    ledger.pipelines.create(NewPipeline("line", "digest", {}, "/", "ann"))
    other = ledger.runs.create("toy", {}, "digest", 1).id
    soup = ledger.leases.take(f"soup/{other}", holder("first"), ttl_seconds=10)
    before = everything(ledger)
    for does in (OTHERS[write][1], lambda ledger, fence: ledger.runs.set_state(fence, "running")):
        with pytest.raises(Fenced, match="no right to"):
            does(ledger, soup)
    assert everything(ledger) == before


def test_every_write_that_takes_a_fence_is_tried_here(ledger: Ledger) -> None:
    fenced = {
        f"{part}.{name}"
        for part, thing in vars(ledger).items()
        if not part.startswith("_")
        for name, method in inspect.getmembers(thing, inspect.ismethod)
        if not name.startswith("_") and "fence" in inspect.signature(method).parameters
    }
    assert fenced - {name for name in OTHERS if "." in name} == set(WRITES)
