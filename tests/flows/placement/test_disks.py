"""Which nodes shared a disk while an iteration was made, as recorded in the audit chain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from db.core.engine import Fence
from db.ledger import Ledger
from flows.placement.disks import DISKS, Disk, disks_during, last_disks
from ops.cli.commands.inspection.placement_tables import write_disks
from tests.db.tools import SimulatedClock
from tests.flows.placement.test_seats import begin


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: SimulatedClock) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", clock=clock) as ledger:
        yield ledger


def attempt(ledger: Ledger, fence: Fence, clock: SimulatedClock, iteration: int) -> None:
    clock.advance(1.0)
    ledger.phases.plan(fence, 0, iteration, "collect")
    clock.advance(1.0)


def test_an_iteration_has_the_disks_of_its_time(
    ledger: Ledger, clock: SimulatedClock, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ledger.runs.create("words", {}, "d", 4).id
    fence = begin(ledger, run)
    assert last_disks(ledger, run) == {}
    attempt(ledger, fence, clock, 1)
    nodes = {"b": "b", "a": "a", "c": "a"}
    ledger.events.append(run, DISKS, {"nodes": nodes}, fence)
    assert last_disks(ledger, run) == nodes
    attempt(ledger, fence, clock, 2)
    ledger.events.append(run, DISKS, {"nodes": {}}, fence)
    attempt(ledger, fence, clock, 3)
    found = [disks_during(ledger, run, 0, iteration) for iteration in (1, 2, 3)]
    assert found == [(), (Disk(("a", "c")), Disk(("b",))), ()]
    write_disks(found[0])
    assert not capsys.readouterr().out
    write_disks(found[1])
    assert "a, c" in capsys.readouterr().out
