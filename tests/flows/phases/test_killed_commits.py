"""The product's loop with simulated actors, killed at each of the ledger's transactions."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks.simulation.cluster import DriverKilled
from db.core.engine import Database
from tests.flows.phases.test_ahead import finish
from tests.flows.simulated import Simulation
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
