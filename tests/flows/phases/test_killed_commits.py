"""The product's loop with simulated actors, killed at each of the ledger's transactions, also as a power cut would."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from benchmarks.simulation.cluster import DriverKilled
from db.core.engine import Database
from tests.flows.phases.test_ahead import finish
from tests.flows.simulated import Simulation, Watcher
from tests.flows.tools import same_result
from tests.recovery.places import watch_ledger

SPEC = ("iterations=5", "checkpoints.every=2")
COLD_EVERY = 3
OF_LEASES = "db.write.lease."
"""Places of the driver's lease, by which the simulation itself replaces a driver."""
NEVER_MISSING = ("commit.Commits.commit", "phases.Phases.dispatch", "records.Records.checkpoint")


def test_a_run_that_is_killed_before_and_after_each_commit_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run is killed again and again, at each transaction twice: when it is undone, and when it is durable."""
    quiet = finish(Simulation.of(tmp_path / "quiet", *SPEC))
    simulation = Simulation.of(tmp_path / "killed", *SPEC)
    died: list[str] = []

    def reach(place: str) -> None:
        is_new = place not in died and OF_LEASES not in place
        if is_new and threading.current_thread() is threading.main_thread():
            died.append(place)
            raise DriverKilled

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", Database.write)
        watch_ledger(reach)
        while (outcome := simulation.drive(cold=len(died) % COLD_EVERY == 0)) is None:
            assert len(died) < 200
    assert outcome.state == "completed"
    with simulation.ledger() as ledger:
        assert ledger.events.verify(simulation.run) is None
    assert same_result(quiet, finish(simulation))
    missing = {f"{when} COMMIT of db.write.{name}" for when in ("before", "after") for name in NEVER_MISSING} - set(
        died
    )
    assert not missing, died


class PowerCut:
    """Keeps what a power cut would leave of a ledger in an SQLite file: it as it was after the last synced transaction.

    is_ahead: whether there are transactions after that one, which the power cut takes back.
    """

    def __init__(self, file: Path, patch: pytest.MonkeyPatch) -> None:
        self._file = file
        self._left = b""
        self.is_ahead = False
        real = Database.write

        @contextmanager
        def write(database: Database, synced: bool = True) -> Iterator[Connection]:
            if not synced and not self.is_ahead:
                self._keep()
            with real(database, synced) as connection:
                yield connection
            self.is_ahead = not synced

        patch.setattr(Database, "write", write)

    def _keep(self) -> None:
        with closing(sqlite3.connect(self._file)) as connection:
            self._left = connection.serialize()

    def strike(self) -> None:
        """Takes back what was not synced. Nobody may have the ledger open."""
        for end in ("-wal", "-shm"):
            Path(f"{self._file}{end}").unlink(missing_ok=True)
        self._file.write_bytes(self._left)
        self.is_ahead = False


POWER_SPEC = (*SPEC, "asynchrony.lag=1", "checkpoints.keep=1", "retention.experience=needed")
"""Files are deleted as soon as the ledger says that they are not needed: what it said must not be taken back."""
LATEST_VISIT = 3
LOST = (
    "phases.Phases.plan",
    "phases.Phases.dispatch",
    "phases.Phases.finish",
    "records.Records.decision",
    "records.Records.shard",
    "records.Records.settle_wave",
    "records.Records.decision_outcome",
)
"""The loop's transactions that are not synced, `dispatch` only in phases that begin with a record."""


def finished(simulation: Simulation) -> tuple[int, list[int]]:
    """Returns the last committed iteration and those of the checkpoints."""
    with simulation.ledger() as ledger:
        rows = ledger.records.checkpoints(simulation.run)
        return ledger.runs.find(simulation.run).iteration, [row.iteration for row in rows]


def test_a_run_whose_unsynced_transactions_are_lost_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run is struck in each phase after each transaction that is not synced, and within the one that follows.

    Places are struck at their first to third visit in turn, so that no iteration is spared. Every other time the actors'
    hosts lose their power too; else the actors are ahead of the ledger.
    """
    quiet = finish(Simulation.of(tmp_path / "quiet", *POWER_SPEC))
    simulation = Simulation.of(tmp_path / "struck", *POWER_SPEC)
    struck = set[tuple[str, str]]()
    visits = dict[tuple[str, str], int]()
    phases = ["start"]
    started = Watcher.phase_started

    def phase_started(watcher: Watcher, iteration: int, phase: str) -> None:
        phases.append(phase)
        started(watcher, iteration, phase)

    with monkeypatch.context() as patch:
        patch.setattr(Watcher, "phase_started", phase_started)
        power = PowerCut(simulation.home.folder / "ledger.db", patch)

        def reach(place: str) -> None:
            where = (place, phases[-1])
            if power.is_ahead and where not in struck and OF_LEASES not in place:
                visits.setdefault(where, len(visits) % LATEST_VISIT)
                visits[where] -= 1
                if visits[where] < 0:
                    struck.add(where)
                    raise DriverKilled

        watch_ledger(reach)
        cold = False
        while (outcome := simulation.drive(cold=cold)) is None:
            before = finished(simulation)
            power.strike()
            assert finished(simulation) == before, "commits and checkpoints are durable at once"
            cold = not cold
            if cold:
                simulation.cluster.collection = None
            phases.append("start")
            assert len(struck) < 400
    assert outcome.state == "completed"
    assert same_result(quiet, finish(simulation))
    assert {f"after COMMIT of db.write.{name}" for name in LOST} <= {place for place, _ in struck}, struck
