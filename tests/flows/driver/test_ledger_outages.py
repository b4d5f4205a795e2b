"""A ledger that is away for long: the driver keeps what it has, says so in the run's folder, and goes on by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from db.core.engine import Fence
from db.core.errors import LedgerUnavailable
from db.write.phases import Attempt, Phases
from db.write.runs import Runs
from flows.driver.stopping import StopRequests
from flows.run.results import run_results
from flows.run.waiting_file import WaitingFile, read_waiting
from tests.flows.simulated import BranchRunActors, Simulation
from tests.flows.tools import same_result
from yatt_core.errors import AwayError
from yatt_core.protocols.receipts import ShardReceipt, ShardTask

MINUTE = 60.0


class Absence:
    """Lets the ledger refuse to finish a phase, and to record its failure, for some simulated seconds."""

    def __init__(self, simulation: Simulation, seconds: float) -> None:
        self.clock = simulation.cluster.clock
        self.seconds = seconds
        self.began: float | None = None
        self.seen: list[WaitingFile] = []
        self.folder = simulation.home.run_folder(simulation.run)

    def refuse(self) -> None:
        if self.began is None:
            self.began = self.clock.monotonic()
        if self.clock.monotonic() < self.began + self.seconds:
            if (found := read_waiting(self.folder)) is not None:
                self.seen.append(found)
            is_late = self.clock.monotonic() > self.began + self.seconds / 2
            raise LedgerUnavailable("no space is left" if is_late else "the ledger at db:5432 does not answer")


@pytest.fixture
def absence(monkeypatch: pytest.MonkeyPatch) -> Callable[[Simulation, float], Absence]:
    def begin(simulation: Simulation, seconds: float) -> Absence:
        made = Absence(simulation, seconds)
        finish = Phases.finish
        fail_open = Phases.fail_open

        def finishing(phases: Phases, attempt: object, **more: Any) -> None:
            if getattr(attempt, "phase", "") == "learn" and getattr(attempt, "iteration", 0) == 2:
                made.refuse()
            finish(phases, attempt=attempt, **more)  # type: ignore[arg-type]

        def failing(phases: Phases, *given: object) -> int:
            made.refuse()
            return fail_open(phases, *given)  # type: ignore[arg-type]

        monkeypatch.setattr(Phases, "finish", finishing)
        monkeypatch.setattr(Phases, "fail_open", failing)
        return made

    return begin


def test_a_driver_waits_for_the_ledger_and_says_so_in_the_runs_folder(
    tmp_path: Path, absence: Callable[[Simulation, float], Absence], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = Simulation.of(tmp_path / "quiet", "iterations=4")
    assert quiet.drive() is not None
    simulation = Simulation.of(tmp_path / "waiting", "iterations=4")
    left = list[float]()
    leave = BranchRunActors.leave_devices

    def leaving(actors: BranchRunActors) -> None:
        left.append(simulation.cluster.clock.monotonic())
        leave(actors)

    monkeypatch.setattr(BranchRunActors, "leave_devices", leaving)
    made = absence(simulation, 20 * MINUTE)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.iteration) == ("completed", 4)
    assert made.began is not None and len(left) == 1
    assert left[0] - made.began == pytest.approx(5 * MINUTE, abs=1.0), "not one pause later"
    last = made.seen[-1]
    assert (last.dependency, last.iteration) == ("the ledger", 1) and last.returned_at is not None
    assert made.seen[0].reason == "the ledger at db:5432 does not answer"
    assert last.reason == "no space is left" and last.next_try_at > last.since
    assert read_waiting(made.folder) is None, "it is gone with the outage"
    with simulation.ledger() as ledger, quiet.ledger() as other:
        assert same_result(run_results(ledger, simulation.run), run_results(other, quiet.run))
        classes = {row.failure_class for row in ledger.phases.attempts(simulation.run, 0, 2) if row.failure_class}
    assert classes == {"away"}, "nobody is charged"


def test_a_driver_gives_up_after_as_long_as_for_anything_else(
    tmp_path: Path, absence: Callable[[Simulation, float], Absence]
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=4", "recovery.wait_hours=0.5")
    made = absence(simulation, 60 * MINUTE)
    with pytest.raises(LedgerUnavailable, match="did not answer for 1800 s"):
        simulation.drive()
    assert len(made.seen) > 100


def test_a_ledger_that_answers_but_records_nothing_is_waited_for_with_pauses_and_heeds_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a full disk: questions are answered, and a change of no row succeeds."""
    stops = StopRequests()
    monkeypatch.setattr("flows.driver.session.StopRequests", lambda: stops)
    simulation = Simulation.of(tmp_path, "iterations=4")
    clock = simulation.cluster.clock
    plan = Phases.plan
    tried = list[float]()

    def refusing(phases: Phases, fence: Fence, branch: int, iteration: int, phase: str) -> Attempt:
        if (iteration == 2 and phase == "learn") or tried:
            tried.append(clock.monotonic())
            if len(tried) == 12:
                stops.ask(reason="enough")
            raise LedgerUnavailable("no space is left")
        return plan(phases, fence, branch, iteration, phase)

    monkeypatch.setattr(Phases, "plan", refusing)
    with pytest.raises(LedgerUnavailable, match="enough while the ledger is away"):
        simulation.drive()
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert len(tried) == 12 and min(gaps[1:]) > 1.0


def test_a_pause_during_an_outage_of_the_ledger_is_recorded_once_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=4")
    clock = simulation.cluster.clock
    set_state = Runs.set_state
    refused = list[float]()

    def collecting(actors: BranchRunActors, *given: object) -> object:
        raise AwayError("judge 'kind' is away: status 503")

    def setting(runs: Runs, fence: Fence, state: str, *more: object) -> None:
        if state == "paused" and len(refused) < 3:
            refused.append(clock.monotonic())
            raise LedgerUnavailable("the ledger at db:5432 does not answer")
        set_state(runs, fence, state, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(BranchRunActors, "collect", collecting)
    monkeypatch.setattr(BranchRunActors, "answers", lambda actors, dependency: False)
    monkeypatch.setattr(Runs, "set_state", setting)
    ended = simulation.drive()
    assert ended is not None and (ended.state, len(refused)) == ("paused", 3)
    with simulation.ledger() as ledger:
        assert ledger.runs.find(simulation.run).state == "paused"
        assert not ledger.waits.of([simulation.run])


def test_two_short_outages_in_a_long_phase_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation.of(tmp_path, "iterations=2")
    clock = simulation.cluster.clock
    fail_open = Phases.fail_open
    refused = list[float]()
    left = list[float]()
    collect = BranchRunActors.collect

    def collecting(actors: BranchRunActors, tasks: Sequence[ShardTask], *more: Any) -> Iterator[ShardReceipt]:
        if len(refused) < 2:
            clock.sleep(40 * MINUTE)
            raise LedgerUnavailable("the ledger at db:5432 does not answer")
        return collect(actors, tasks, *more)

    def failing(phases: Phases, *given: object) -> int:
        if len(refused) < 2 and (not refused or clock.monotonic() > refused[-1] + 20 * MINUTE):
            refused.append(clock.monotonic())
            raise LedgerUnavailable("the ledger at db:5432 does not answer")
        return fail_open(phases, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(BranchRunActors, "collect", collecting)
    monkeypatch.setattr(BranchRunActors, "leave_devices", lambda actors: left.append(clock.monotonic()))
    monkeypatch.setattr(Phases, "fail_open", failing)
    ended = simulation.drive()
    assert ended is not None and (ended.state, len(refused), left) == ("completed", 2, [])
