"""A cut of a ledger is loaded into either database: the same rows, nobody drives, new rows are numbered after the loaded ones."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from db.core import migrate
from db.core.engine import Fence
from db.core.errors import LedgerVersionError
from db.core.migrate import HEAD
from db.core.models import Base
from db.ledger import Ledger
from db.portable.cut import TableHead
from db.portable.lines import DamagedRow, line_of, values_of
from db.portable.load import Loading, finish, is_loaded, load
from db.portable.settle import RESTORED, BackupOrigin, moved_paths
from db.write.outbox import OutboxEntry
from tests.db.tools import SimulatedClock, commit_of, commit_through, everything, holder

Exported = list[tuple[TableHead, list[bytes]]]
SETTLED = {"event", "run", "lease", "driver_session", "phase_attempt"}
"""Tables in which `settle` changes something in these tests."""


def exported(ledger: Ledger) -> Exported:
    with ledger.exports.cut() as cut:
        return [(head, list(lines)) for head, lines in cut.tables()]


def rows_of(tables: Exported) -> Iterator[tuple[TableHead, Iterator[list[Any]]]]:
    for head, lines in tables:
        yield head, values_of(head.name, iter(lines), len(lines))


def origin_of(**changes: Any) -> BackupOrigin:
    return BackupOrigin(**({"backup": "b", "cut_at": 5, "old_home": "/old", "new_home": "/old"} | changes))


@pytest.fixture
def working(ledger: Ledger, run: str, fence: Fence) -> Ledger:
    """A ledger with a driver at work, and with values that are hard to write as text."""
    ledger.leases.start_session(fence, "flow run", "name")
    commit_through(ledger, fence, range(4))
    ledger.phases.dispatch(fence, ledger.phases.plan(fence, 0, 4, "collect"))
    ledger.events.append(
        run, "note", {"text": 'quotes " and \\ and \n and é 漢 \u2028', "number": 0.1 + 0.2, "none": None}
    )
    ledger.events.append(run, "note", {"large": 2**60, "small": 5e-324})
    return ledger


@pytest.mark.postgresql
def test_rows_loaded_into_the_same_database_are_the_same(
    working: Ledger, new_address: str | Path, clock: SimulatedClock
) -> None:
    check_copy(working, str(new_address), clock)


def check_copy(source: Ledger, target: str, clock: SimulatedClock) -> None:
    with source.exports.cut() as cut:
        revision = cut.revision
    before = everything(source)
    loading = Loading(target, "token")
    assert not is_loaded(loading)
    load(loading, revision, rows_of(exported(source)), origin_of(), clock)
    assert is_loaded(loading)
    with pytest.raises(LedgerVersionError, match="is being restored"):
        Ledger.open(target)
    finish(loading)
    finish(loading)
    with Ledger.open(target, migrate=False, clock=clock) as copy:
        after = everything(copy)
        assert {name: rows for name, rows in after.items() if name not in SETTLED} == {
            name: rows for name, rows in before.items() if name not in SETTLED
        }
        check_settled(copy)
        check_goes_on(copy)


def check_settled(copy: Ledger) -> None:
    run = "toy-1"
    assert copy.leases.holders() == {}
    (session,) = copy.overview.show(run).sessions
    assert session.outcome == "lost"
    assert [attempt.state for attempt in copy.phases.attempts(run, 0, 4)] == ["FAILED"]
    assert copy.events.verify(run) is None
    (link,) = copy.events.of_kind(run, RESTORED)
    assert link.body == {"backup": "b", "cut_at": 5, "term": 1}


def check_goes_on(copy: Ledger) -> None:
    fence = copy.leases.acquire("toy-1", holder("second"), ttl_seconds=10)
    assert fence.term == 2
    commit_through(copy, fence, range(4, 6))
    assert copy.outbox.enqueue(fence, [OutboxEntry("new", "tags", {}, 1)]) == 1
    assert copy.runs.create("toy", {}, "d", 1).id == "toy-2"


@pytest.mark.postgresql
def test_rows_written_on_one_database_are_loaded_into_the_other(
    backend: str, working: Ledger, clock: SimulatedClock, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if backend == "postgresql":
        check_copy(working, str(tmp_path / "copy.sqlite"), clock)
        return
    server = request.getfixturevalue("postgresql")
    target = server.create("copy_of_sqlite")
    try:
        check_copy(working, target, clock)
    finally:
        server.drop("copy_of_sqlite")


def test_a_cut_does_not_see_what_is_written_meanwhile(working: Ledger, run: str, fence: Fence) -> None:
    with working.exports.cut() as cut:
        working.commits.commit(fence, commit_of(4))
        tables = {head.name: list(lines) for head, lines in cut.tables()}
    assert len(tables["iteration"]) == 4
    assert len(tables["control_state"]) == 4
    assert len({head.name: lines for head, lines in exported(working)}["iteration"]) == 5


def test_a_database_with_a_ledger_is_refused_and_left_alone(working: Ledger, address: str | Path) -> None:
    before = everything(working)
    with pytest.raises(LedgerVersionError, match="not empty"):
        is_loaded(Loading(str(address), "token"))
    assert everything(working) == before


def test_a_damaged_row_leaves_the_database_empty(working: Ledger, new_address: str | Path) -> None:
    tables = exported(working)
    (lines,) = (lines for head, lines in tables if head.name == "event")
    lines[2] = lines[2].replace(b"commit", b"commot")
    loading = Loading(str(new_address), "token")
    with pytest.raises(DamagedRow, match="table event, row 3: its values were altered"):
        load(loading, HEAD, rows_of(tables), origin_of())
    assert not is_loaded(loading)


def test_rows_of_a_newer_version_are_refused(working: Ledger, new_address: str | Path) -> None:
    with pytest.raises(LedgerVersionError, match="migration 9999, which this version of YATT does not know"):
        load(Loading(str(new_address), "token"), "9999", rows_of(exported(working)), origin_of())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: lines[:1] + lines[2:], "row 2 is missing"),
        (lambda lines: lines[:-1], "row 3 is missing; it has 2 rows, expected 3"),
        (lambda lines: [*lines, line_of(4, [4])], "row 4 is one too many"),
        (lambda lines: [lines[0], b"{}}", lines[2]], "row 2: not a row"),
    ],
)
def test_the_first_damaged_line_is_named(change: Any, says: str) -> None:
    lines = [line_of(number, [number, "text"]) for number in (1, 2, 3)]
    assert list(values_of("t", lines, 3)) == [[1, "text"], [2, "text"], [3, "text"]]
    with pytest.raises(DamagedRow, match=says):
        list(values_of("t", change(lines), 3))


@pytest.mark.postgresql
def test_rows_delivered_after_the_trackers_copy_are_sent_again_and_paths_move(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock, new_address: str | Path
) -> None:
    ledger.outbox.enqueue(fence, [OutboxEntry(name, "tags", {"path": f"/old/{name}"}, 1) for name in ("early", "late")])
    ledger.outbox.claim(fence)
    ledger.outbox.delivered(fence, ["early"])
    clock.advance(5)
    ledger.outbox.delivered(fence, ["late"])
    loading = Loading(str(new_address), "token")
    load(loading, HEAD, rows_of(exported(ledger)), origin_of(tracked_at=clock.now, new_home="/new"), clock)
    finish(loading)
    with Ledger.open(new_address, clock=clock) as copy, copy._database.read() as connection:
        table = Base.metadata.tables["metric_outbox"]
        rows = connection.execute(select(table.c.id, table.c.delivered_at, table.c.payload).order_by(table.c.seq)).all()
    found = {row.id: (row.delivered_at is None, row.payload["path"]) for row in rows}
    assert found == {"early": (False, "/old/early"), "late": (True, "/new/late")}


def test_only_paths_below_the_home_move() -> None:
    value = {"a": ["/old/x", "/older/x", "/old"], "b": {"c": "see /old/x"}, "n": 1}
    assert moved_paths(value, "/old", "/new") == {"a": ["/new/x", "/older/x", "/new"], "b": {"c": "see /old/x"}, "n": 1}


CHANGES_ROWS = """
from alembic import op

revision, down_revision = "9999", "{before}"


def upgrade() -> None:
    op.execute("UPDATE run SET state_reason = 'migrated'")
"""


def test_later_migrations_are_applied_to_loaded_rows(
    ledger: Ledger, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = exported(ledger)
    target = tmp_path / "loaded.sqlite"
    shutil.copytree(migrate.MIGRATIONS, tmp_path / "migrations")
    (tmp_path / "migrations" / "versions" / "9999_rows.py").write_text(CHANGES_ROWS.format(before=HEAD))
    monkeypatch.setattr(migrate, "MIGRATIONS", tmp_path / "migrations")
    monkeypatch.setattr(migrate, "HEAD", "9999")
    load(Loading(str(target), "token"), HEAD, rows_of(tables), origin_of())
    with sqlite3.connect(target) as connection:
        assert connection.execute("SELECT id, state_reason FROM run").fetchall() == [(run, "migrated")]
    connection.close()
