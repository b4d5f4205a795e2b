"""Transactions of the ledger's connections."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from db.core import ancestry, engine
from db.core.engine import IDLE_IN_TRANSACTION_MS, Database, Fence
from db.ledger import Ledger
from db.write import checkpoint_requests, commit, events, metrics, outbox, phases, records, runs
from db.write.commit import IterationCommit
from db.write.metrics import Metric
from db.write.records import DecisionRow, WaveRow
from tests.db.conftest import empty_address
from tests.db.machines.iterations import SHARD
from tests.db.tools import holder
from tests.postgresql import Server

LONG_MS = 600_000
DECISION = DecisionRow(branch=0, iteration=0, seq=0, inputs={}, decision={}, prediction={}, reason="")
IDLE_TIME = text("SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'")


def test_the_patience_of_a_read_ends_with_its_transaction(postgresql: Server) -> None:
    with Ledger.open(empty_address(postgresql)) as ledger:
        database = ledger._database
        with database.read(patience_ms=LONG_MS) as connection:
            assert connection.execute(IDLE_TIME).scalar_one() == LONG_MS
        with database.read() as connection:
            assert connection.execute(IDLE_TIME).scalar_one() == IDLE_IN_TRANSACTION_MS


def test_transactions_run_inside_what_measures_them(tmp_path: Path) -> None:
    told: list[str] = []

    @contextmanager
    def measured(kind: str) -> Iterator[None]:
        told.append(f"{kind} begins")
        yield
        told.append(f"{kind} ends")

    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.measure(measured)
        with ledger._database.write():
            told.append("inside")
        with ledger._database.read():
            told.append("inside")
    assert told == ["write begins", "inside", "write ends", "read begins", "inside", "read ends"]


def test_sqlite_waits_for_the_disk_unless_a_later_transaction_does(tmp_path: Path) -> None:
    setting = text("PRAGMA synchronous")
    found = []
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        for synced in (True, False, False, True, False, True):
            with ledger._database.write(synced) as connection:
                found.append(connection.execute(setting).scalar_one())
    full = 2
    normal = 1
    assert found == [full, normal, normal, full, normal, full]


def test_postgresql_waits_for_the_disk_unless_a_later_transaction_does(postgresql: Server) -> None:
    setting = text("SHOW synchronous_commit")
    found = []
    with Ledger.open(empty_address(postgresql)) as ledger:
        for synced in (True, False, True):
            with ledger._database.write(synced) as connection:
                found.append(connection.execute(setting).scalar_one())
    assert found == ["on", "off", "on"]


def test_what_only_says_that_something_is_done_becomes_durable_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt is charged, and a choice made, before anything follows from it; the disk need not be waited for elsewhere."""
    synced_in: Counter[str] = Counter()
    fenced = Database.fenced

    def noted(database: Database, fence: Fence, synced: bool = True) -> Any:
        synced_in[sys._getframe(1).f_code.co_name] += synced
        return fenced(database, fence, synced)

    with Ledger.open(tmp_path / "ledger.db") as ledger:
        run = ledger.runs.create("toy", {}, "d", 1)
        fence = ledger.leases.acquire(run.id, holder("driver"), ttl_seconds=60)
        monkeypatch.setattr(Database, "fenced", noted)
        attempt = ledger.phases.plan(fence, 0, 0, "collect")
        ledger.phases.dispatch(fence, attempt)
        ledger.records.wave(fence, WaveRow(0, 0, 0, {}))
        ledger.records.shard(fence, SHARD)
        ledger.records.settle_wave(fence, 0, 0, 0, {})
        ledger.records.decision(fence, DECISION)
        ledger.records.decision_outcome(fence, 0, 0, 0, {"seconds": 1.0})
        ledger.phases.dispatch(fence, ledger.phases.plan(fence, 0, 0, "commit"), synced=False)
        ledger.phases.finish(fence, attempt, {}, 1.0)
    assert synced_in == {
        **{"plan": 0, "dispatch": 1, "wave": 1, "shard": 0, "settle_wave": 0, "finish": 0},
        **{"decision": 0, "decision_outcome": 0},
    }


def test_statements_of_every_iteration_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To make a statement takes longer than to execute it; an insert is nothing but its table."""
    made: list[object] = []

    def noted(make: Callable[..., Any], *given: object) -> Any:
        made.append(given)
        return make(*given)

    with Ledger.open(tmp_path / "ledger.db") as ledger:
        run = ledger.runs.create("toy", {}, "d", 1)
        fence = ledger.leases.acquire(run.id, holder("driver"), ttl_seconds=60)
        commit_next(ledger, fence, 0)
        for module in (ancestry, checkpoint_requests, commit, engine, events, metrics, outbox, phases, records, runs):
            for name in ("select", "update"):
                if name in vars(module):
                    monkeypatch.setattr(module, name, partial(noted, getattr(module, name)))
        iterate(ledger, fence, 1)
        first = len(made)
        iterate(ledger, fence, 2)
        assert len(made) == first
        monkeypatch.undo()
        row = ledger.phases.done(run.id, 0, 2, "collect")
        assert row is not None and (row.receipt, row.seconds, row.bytes_to_driver) == ({"steps": 2}, 1.5, 20)
        assert [shard.shard for shard in ledger.records.shards(run.id, 0, 2)] == [0, 1]
        assert [shard.shard for shard in ledger.records.shards(run.id, 0, 2, wave=1)] == []
        assert [wave.outcome for wave in ledger.records.waves(run.id, 0, 2)] == [{"admitted": 2}]
        assert [each.outcome for each in ledger.records.decisions(run.id, 0, 2)] == [{"seconds": 2.0}]
        assert ledger.metrics.at(run.id, 0, 2) == {"loss": 2.0}


def iterate(ledger: Ledger, fence: Fence, iteration: int) -> None:
    """Does what a driver asks of the ledger in an iteration."""
    run = fence.run
    before = ledger.commits.at(run, iteration - 1)
    assert before is not None and ledger.runs.desired_state(run) == "run"
    ledger.phases.seconds(run, 0, before.iteration)
    records = ledger.records
    decision = replace(DECISION, iteration=iteration)
    assert records.decision(fence, decision) == records.decision(fence, decision) == decision
    attempt = ledger.phases.plan(fence, 0, iteration, "collect")
    ledger.phases.dispatch(fence, attempt)
    records.wave(fence, WaveRow(0, iteration, 0, {"shards": 2}))
    assert records.choices(run, 0, iteration) == {}
    for shard in range(2):
        records.shard(fence, replace(SHARD, branch=0, iteration=iteration, wave=0, shard=shard))
    records.settle_wave(fence, 0, iteration, 0, {"admitted": 2})
    records.shards(run, 0, iteration)
    ledger.phases.finish(fence, attempt, {"steps": iteration}, 1.5, 20)
    assert ledger.phases.done(run, 0, iteration, "prepare") is None
    assert ledger.checkpoint_requests.pending(run) is None
    assert len(records.decisions(run, 0, iteration)) == 1
    records.decision_outcome(fence, 0, iteration, 0, {"seconds": float(iteration)})
    commit_next(ledger, fence, iteration)


def commit_next(ledger: Ledger, fence: Fence, iteration: int) -> None:
    """Commits an iteration."""
    loss = [Metric("loss", float(iteration))]
    row = IterationCommit(branch=0, iteration=iteration, control_state={}, logged_at_ms=1, metrics=loss)
    ledger.commits.commit(fence, row)
