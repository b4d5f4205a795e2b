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

from db.core import engine
from db.core.engine import IDLE_IN_TRANSACTION_MS, Database, Fence
from db.ledger import Ledger
from db.write import phases, records
from db.write.phases import Attempt
from db.write.records import WaveRow
from tests.db.conftest import empty_address
from tests.db.machines.iterations import SHARD
from tests.db.tools import holder
from tests.postgresql import Server

LONG_MS = 600_000
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
        ledger.phases.finish(fence, attempt, {}, 1.0)
    assert synced_in == {"plan": 0, "dispatch": 1, "wave": 1, "shard": 0, "settle_wave": 0, "finish": 0}


def test_statements_of_every_phase_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To make a statement takes longer than to execute it; an insert is nothing but its table."""
    made: list[object] = []

    def noted(make: Callable[..., Any], *given: object) -> Any:
        made.append(given)
        return make(*given)

    with Ledger.open(tmp_path / "ledger.db") as ledger:
        run = ledger.runs.create("toy", {}, "d", 1)
        fence = ledger.leases.acquire(run.id, holder("driver"), ttl_seconds=60)
        for module, name in ((engine, "select"), (phases, "select"), (phases, "update"), (records, "select")):
            monkeypatch.setattr(module, name, partial(noted, getattr(module, name)))
        ledger.phases.finish(fence, dispatched(ledger, fence), {"steps": 1}, 1.5, 20)
        ledger.records.shard(fence, SHARD)
        first = len(made)
        ledger.phases.finish(fence, dispatched(ledger, fence), {"steps": 2}, 2.5, 30)
        ledger.records.shard(fence, replace(SHARD, shard=1))
        assert len(made) == first
        monkeypatch.undo()
        row = ledger.phases.done(run.id, 0, 0, "collect")
        assert row is not None and (row.number, row.receipt, row.seconds, row.bytes_to_driver) == (
            2,
            {"steps": 2},
            2.5,
            30,
        )
        assert [shard.shard for shard in ledger.records.shards(run.id, 0, 0)] == [0, 1]


def dispatched(ledger: Ledger, fence: Fence) -> Attempt:
    """Returns an attempt whose work may begin."""
    attempt = ledger.phases.plan(fence, 0, 0, "collect")
    ledger.phases.dispatch(fence, attempt)
    return attempt
