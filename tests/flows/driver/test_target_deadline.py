"""A run with a deadline, in simulated time: the alarm comes before it is missed, and the action after it has passed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from benchmarks.simulation.cluster import SimulatedClock
from flows.driver.target_deadline import TargetDeadline
from flows.run.home import Home
from tests.flows.opened import commit, new_run, opened
from tests.flows.simulated import Simulation

PLAIN = ("iterations=12", "checkpoints.every=4")


def due_after(folder: Path, seconds: float, action: str) -> Simulation:
    at = datetime.fromtimestamp(SimulatedClock().time_ms() / 1000 + seconds, UTC).isoformat()
    return Simulation.of(folder, *PLAIN, f"guards.deadline.at={at}", f"guards.deadline.action={action}")


def took(made: Simulation) -> float:
    """Returns the seconds that the whole run takes."""
    began = made.cluster.clock.time_ms()
    assert made.drive() is not None
    return float(made.cluster.clock.time_ms() - began) / 1000


def test_an_alarm_comes_before_the_deadline_and_the_pause_after_it(tmp_path: Path) -> None:
    whole = took(Simulation.of(tmp_path / "plain", *PLAIN))
    due = due_after(tmp_path / "due", 0.8 * whole, "pause")
    outcome = due.drive()
    assert outcome is not None and outcome.state == "paused" and 5 < outcome.iteration < 12
    with due.ledger() as ledger:
        late, passed = (row for row in ledger.alarms.of(due.run) if row.rule == "deadline")
        assert late.action == "alert" and late.evidence["now"] < late.evidence["deadline"] < late.evidence["expected"]
        assert passed.action == "pause" and passed.evidence["now"] >= passed.evidence["deadline"]
    again = due.drive()
    assert again is not None and (again.state, again.iteration) == ("paused", outcome.iteration), "until it is moved"


def test_a_run_in_time_raises_none(tmp_path: Path) -> None:
    whole = took(Simulation.of(tmp_path / "plain", *PLAIN))
    due = due_after(tmp_path / "due", 2 * whole, "stop")
    outcome = due.drive()
    assert outcome is not None and outcome.state == "completed"
    with due.ledger() as ledger:
        assert [row for row in ledger.alarms.of(due.run) if row.rule == "deadline"] == []


def test_an_alarm_comes_while_an_iteration_is_held_up(tmp_path: Path) -> None:
    """An outage lets no iteration end, so the thread that renews the lease asks."""
    clock = SimulatedClock()
    at = datetime.fromtimestamp(clock.time_ms() / 1000 + 1000, UTC).isoformat()
    home = Home(tmp_path)
    session = opened(home, new_run(home, "iterations=12", f"guards.deadline.at={at}"))
    try:
        for iteration in range(7):
            commit(session, iteration, seconds__iteration=10.0)
        deadline = TargetDeadline(session.context.ledger, session.context.run, session.context.spec, clock)
        assert list(deadline.alarms(0, 6)) == []
        clock.sleep(900.0)
        assert list(deadline.under_way()) == [], "six iterations of 10 s are still possible"
        clock.sleep(51.0)
        ((branch, iteration, alarm),) = deadline.under_way()
        assert (branch, iteration, alarm.action) == (0, 6, "alert") and alarm.name.endswith(".late")
        clock.sleep(100.0)
        ((_, _, alarm),) = deadline.under_way()
        assert "has passed after iteration 6" in alarm.finding.text
    finally:
        session.end("ended")
