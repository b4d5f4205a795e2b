"""Migration 0009 carries over the leases of the version before, and shuts its pipelines and scheduler out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from db.core.base import NEWER
from db.core.engine import Database, DatabaseTime, Fence, database_url, open_engine
from db.core.errors import LeaseHeld
from db.core.migrate import upgrade
from db.core.subjects import QUEUE, SWEEP, of_pipeline, of_run, subject_of
from db.ledger import Ledger
from db.write.pipelines import NewPipeline
from db.write.scheduling import Grant
from tests.db.released import fill
from tests.db.tools import SimulatedClock, commit_of, holder

RUN = "toy-1"
LINE = "line-1"
BEFORE = "0008"
LEASES = {of_run(RUN): 4, of_pipeline(LINE): 2, subject_of(QUEUE): 6}
"""The terms of the leases of the older ledger, by subject."""
HELD = "host = 'far-away', boot_id = 'boot', pid = 1, process_start = 1, expires_at = :expires"
PIPELINE = """
INSERT INTO pipeline (id, name, number, digest, spec, folder, "by", state, reason, created_at, term, expires_at)
VALUES ('line-1', 'line', 1, 'digest', '{}', '/', 'ann', 'running', '', 1, 2, 0)
"""
JOB = """
INSERT INTO pipeline_job (pipeline, job, number, state, key, inputs, outputs, reason, started_at)
VALUES ('line-1', 'sft', 1, 'running', 'key', '{}', '{}', '', 1)
"""
ENTRY = """
INSERT INTO queue_entry (run, seq, pools, owner, project, priority, devices, checkpoints, wanted, state, reason, submitted_at,
    waited_ms, failures)
VALUES ('toy-1', 1, 'main', 'ann', 'chat', 0, 1, 'spec', 'run', 'waiting', '', 1, 0, 0)
"""


@pytest.fixture
def older(new_address: str | Path, clock: SimulatedClock) -> Database:
    """A ledger of the version before, in which a driver, a pipeline and a scheduler of another host are at work."""
    fill(new_address)
    database = Database(open_engine(database_url(new_address)), DatabaseTime)
    with database.write() as connection:
        upgrade(connection, "the test's ledger", BEFORE)
        for row in (PIPELINE, JOB, ENTRY, "INSERT INTO queue_scheduler (id, term, expires_at) VALUES (1, 6, 0)"):
            connection.execute(text(row))
        at = {"expires": clock.now + 5000}
        connection.execute(text(f"UPDATE lease SET term = 4, holder = 'older driver', ttl_ms = 10000, {HELD}"), at)
        connection.execute(text(f"UPDATE pipeline SET holder = 'older pipeline', {HELD}"), at)
        connection.execute(text(f"UPDATE queue_scheduler SET holder = 'older scheduler', {HELD}"), at)
    return database


@pytest.mark.postgresql
def test_living_leases_are_carried_over_and_everything_goes_on(
    new_address: str | Path, older: Database, clock: SimulatedClock
) -> None:
    with Ledger.open(new_address, clock=clock) as ledger:
        assert ledger.leases.holders() == {RUN: holder("older driver")}
        assert ledger.pipelines.find(LINE).holder == "older pipeline" and not ledger.pipelines.is_interrupted(LINE)
        for subject, term in LEASES.items():
            with pytest.raises(LeaseHeld, match=r"is held by older \w+; the lease expires in 5\.0 s"):
                ledger.leases.take(subject, holder("newer"), 10)
            ledger.leases.renew(Fence(subject, term), 10)
        clock.advance(10)
        run, line, queue = (ledger.leases.take(subject, holder("newer"), 10) for subject in LEASES)
        assert [run.term, line.term, queue.term] == [5, 3, 7]
        ledger.commits.commit(run, commit_of(4))
        assert ledger.pipelines.jobs(LINE)["sft"].state == "lost"
        ledger.pipelines.begin(line, "sft", "key", {}, {})
        assert ledger.scheduling.allocate(queue, Grant(RUN, "main", (0,), 0, backfilled=False), run.term).term == 7
        sweep = ledger.leases.take(subject_of(SWEEP, RUN), holder("sweep"), 10)
        ledger.events.append(RUN, "sweep_trial", {}, sweep)
        assert ledger.events.verify(RUN) is None
    older.engine.dispose()


def asked(connection: Connection, query: str) -> Any:
    return connection.execute(text(query), {"run": RUN}).one()


@pytest.mark.postgresql
def test_a_driver_of_the_version_before_goes_on_and_is_fenced_by_a_newer_one(
    new_address: str | Path, older: Database, clock: SimulatedClock
) -> None:
    """It asks for its run's row with the statements of that version, on connections that are open already."""
    check = "SELECT term, holder FROM lease WHERE run = :run"
    for _ in range(8):  # more often than the driver of PostgreSQL prepares a statement after
        with older.write() as connection:
            assert asked(connection, check) == (4, "older driver")
    with Ledger.open(new_address, clock=clock) as ledger:
        with older.write() as connection:
            assert asked(connection, check) == (4, "older driver")
            renewal = text("UPDATE lease SET expires_at = expires_at + 10000 WHERE run = :run")
            assert connection.execute(renewal, {"run": RUN}).rowcount == 1
        clock.advance(10)
        with pytest.raises(LeaseHeld, match="older driver; the lease expires in 5"):
            ledger.leases.acquire(RUN, holder("newer"), 10)
        clock.advance(10)
        ledger.leases.acquire(RUN, holder("newer"), 10)
    with older.write() as connection:
        assert asked(connection, check) == (5, "newer")
    older.engine.dispose()


@pytest.mark.postgresql
def test_pipelines_and_schedulers_of_the_version_before_wait_for_ever(
    new_address: str | Path, older: Database, clock: SimulatedClock
) -> None:
    with Ledger.open(new_address, clock=clock) as ledger:
        ledger.pipelines.create(NewPipeline("later", "digest", {}, "/", "ann"))
    with older.read() as connection:
        term, *held = asked(connection, "SELECT term, holder, host, expires_at > 4102444800000 FROM queue_scheduler")
        assert (term, held) == (7, [NEWER, "", True])
        lines = connection.execute(text("SELECT id, term, holder, host, expires_at > 4102444800000 FROM pipeline"))
        assert sorted(map(tuple, lines)) == [("later-1", 0, NEWER, "", True), (LINE, 3, NEWER, "", True)]
    older.engine.dispose()


def test_a_scheduler_of_the_version_before_that_has_not_led_yet_waits_too(tmp_path: Path) -> None:
    fill(tmp_path / "ledger.db")
    with Ledger.open(tmp_path / "ledger.db") as ledger, ledger._database.read() as connection:
        assert asked(connection, "SELECT id, holder FROM queue_scheduler") == (1, NEWER)
