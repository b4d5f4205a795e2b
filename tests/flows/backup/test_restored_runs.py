"""A run is backed up while it runs, restored under another path and on the other database, and resumed: the same digests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from db.ledger import Ledger
from db.portable.settle import RESTORED
from flows.backup.folder import BackupFolder
from flows.backup.restore import restore_backup
from flows.backup.verify import verify_backup
from flows.reports.audit import verify_run
from flows.run.home import LEDGER_VARIABLE, Home
from flows.run.results import run_results
from ops.integrations.mlflow_reader import reader_of
from tests.flows.backup.scenarios import backup_of
from tests.flows.tools import Driver, same_result
from tests.postgresql import Server, start_server
from tests.waiting import wait_until

pytestmark = [pytest.mark.verify, pytest.mark.timeout(1200)]
ITERATIONS = 14
SLOW = ("rollout.engine.base_seconds=0.25", f"iterations={ITERATIONS}", "checkpoints.every=3", "checkpoints.keep=2")
SECONDS = 240.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("postgresql") / "data")
    yield server
    server.close()


def iteration_of(address: str, run: str) -> int:
    with Ledger.open(address, migrate=False) as ledger:
        return ledger.runs.find(run).iteration


def backed_up_while_it_runs(driver: Driver, run: str, address: str, at: int, folder: Path) -> str:
    """Drives a run to its end, and backs it up after iteration `at`; returns the backup's id."""
    process = driver.start(run)
    wait_until(lambda: process.ended() is not None or iteration_of(address, run) >= at, SECONDS)
    made = backup_of(driver.home, folder)
    assert process.ended() is None, process.output
    assert process.wait(SECONDS) == 0, process.output
    assert made.manifest.lacking == {} and verify_backup(BackupFolder(folder), made.id).sound
    return made.id


def check_restored(address: str, run: str) -> None:
    """Requires that nobody drives the run, as after a killed driver, in the middle of its work."""
    with Ledger.open(address, migrate=False) as ledger:
        assert ledger.leases.holders() == {}
        assert 0 < ledger.runs.find(run).iteration < ITERATIONS
        assert [session.outcome for session in ledger.overview.sessions(run)][-1:] == ["lost"]
        assert ledger.events.verify(run) is None and len(ledger.events.of_kind(run, RESTORED)) >= 1


def check_sound(home: Home, address: str, run: str) -> None:
    with Ledger.open(address, migrate=False) as ledger:
        report = verify_run(ledger, run, home.run_folder(run), reader_of(home, ledger, run))
    assert report.sound, report.disagreement
    assert report.checked["metrics"] > 0 and report.checked["checkpoints"] > 0


def test_a_restored_run_ends_like_the_undisturbed_one(
    driver: Driver, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = driver.create("virtual.yaml", *SLOW)
    backup = backed_up_while_it_runs(driver, run, driver.home.ledger, 4, tmp_path / "first")
    undisturbed = driver.results(run)

    # from SQLite to PostgreSQL, under another path; and again from there, while it runs
    dsn = server.create("restored")
    moved = Driver(tmp_path / "elsewhere" / "runs", driver.nursery, {LEDGER_VARIABLE: dsn})
    restore_backup(BackupFolder(tmp_path / "first"), backup, moved.home, dsn)
    check_restored(dsn, run)
    at = iteration_of(dsn, run) + 3
    monkeypatch.setenv(LEDGER_VARIABLE, dsn)
    again = backed_up_while_it_runs(moved, run, dsn, at, tmp_path / "second")
    check_same(moved.home, dsn, run, undisturbed)
    monkeypatch.delenv(LEDGER_VARIABLE)

    back = Driver(tmp_path / "back" / "runs", driver.nursery)
    restore_backup(BackupFolder(tmp_path / "second"), again, back.home, back.home.ledger_address)
    check_restored(back.home.ledger, run)
    back.drive(run)
    check_same(back.home, back.home.ledger, run, undisturbed)


def check_same(home: Home, address: str, run: str, undisturbed: object) -> None:
    with Ledger.open(address, migrate=False) as ledger:
        assert same_result(run_results(ledger, run), undisturbed)  # type: ignore[arg-type]
        assert ledger.runs.find(run).state == "completed"
        commits = [link.body["iteration"] for link in ledger.events.of_kind(run, "commit")]
    assert commits == list(range(ITERATIONS + 1))
    check_sound(home, address, run)
