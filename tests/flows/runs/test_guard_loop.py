"""Alarms in the product's loop with simulated actors: endings, rollbacks and budgets, with and without kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.write.alarms import AlarmRow
from flows.branching.branches import revise
from flows.run.results import RunResults, run_results
from tests.faults import not_finite_at
from tests.flows.simulated import Simulation
from tests.flows.tools import same_result

ANY = "guards.custom=[{name: any, metric: reward/mean, at_most: -1.0, window: 2, action: ACTION}]"
SPIKE = "guards.custom=[{name: spike, metric: grad_norm, at_most: 2.5, window: 1, action: rollback}]"


def alarms(simulation: Simulation) -> list[AlarmRow]:
    with simulation.ledger() as ledger:
        assert ledger.events.verify(simulation.run) is None
        return ledger.alarms.of(simulation.run)


def results(simulation: Simulation) -> RunResults:
    with simulation.ledger() as ledger:
        return run_results(ledger, simulation.run)


@pytest.mark.parametrize(
    ("action", "state", "code", "killed_at"),
    [
        pytest.param("pause", "paused", 4, "", marks=pytest.mark.verify),
        ("pause", "paused", 4, "committed:2"),
        ("stop", "stopped", 0, ""),
        pytest.param("stop", "stopped", 0, "committed:2", marks=pytest.mark.verify),
    ],
)
def test_a_pending_end_is_made_by_the_next_driver_and_a_resume_continues(
    tmp_path: Path, action: str, state: str, code: int, killed_at: str
) -> None:
    simulation = Simulation.of(tmp_path, ANY.replace("ACTION", action), "iterations=3")
    if killed_at:
        assert simulation.drive(killed_at) is None
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.iteration, ended.exit_code) == (state, 2, code)
    assert ended.reason.startswith("guard any: reward/mean was 0 on average over iterations 1 to 2, above -1")
    with simulation.ledger() as ledger:
        assert ledger.records.checkpoints(simulation.run)[0].iteration == 2
    resumed = simulation.drive()
    assert resumed is not None and (resumed.state, resumed.iteration) == ("completed", 3)
    assert [alarm.iteration for alarm in alarms(simulation)] == [2]


def rolled_back(folder: Path, *killed_at: str, cold: bool = False) -> Simulation:
    simulation = Simulation.of(folder, SPIKE, "guards.rollback_limit=99", "iterations=8", "checkpoints.every=2")
    for place in killed_at:
        assert simulation.drive(place, cold) is None, f"nobody died at {place}"
    ended = simulation.drive("", cold)
    assert ended is not None and ended.state == "completed", ended
    return simulation


def line(simulation: Simulation) -> list[tuple[int, int | None, str]]:
    with simulation.ledger() as ledger:
        rows = ledger.overview.branches(simulation.run)
        return [(row.number, row.parent_iteration, row.reason) for row in rows]


def test_a_rollback_goes_to_before_the_window_and_draws_other_prompts(tmp_path: Path) -> None:
    simulation = rolled_back(tmp_path)
    first = alarms(simulation)[0]
    number, at, reason = line(simulation)[1]
    assert (number, at) == (1, (first.iteration - 1) // 2 * 2)
    assert reason == f"guard spike at iteration {first.iteration} of branch 0"
    with simulation.ledger() as ledger:
        left = ledger.commits.at(simulation.run, first.iteration, 0)
        cursor = ledger.records.choices(simulation.run, 1, at + 1)["cursor"].body["cursor"]
        assert left is not None and left.state["cursor"] == cursor, "prompts that led there are not drawn again"
        assert all(value <= 2.5 for _, value in ledger.metrics.history(simulation.run, "grad_norm"))


@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.verify)])
@pytest.mark.parametrize("where", ["alarm", "branch", pytest.param("behind", marks=pytest.mark.verify)])
def test_a_rollback_comes_out_the_same_wherever_a_driver_dies(tmp_path: Path, where: str, cold: bool) -> None:
    """Kills hit after the commit with the alarm, after the branch was opened, and at the branch's first commit."""
    quiet = rolled_back(tmp_path / "quiet")
    first = alarms(quiet)[0]
    _, at, _ = line(quiet)[1]
    assert at is not None
    places = {
        "alarm": (f"committed:{first.iteration}",),
        "branch": ("branch:1",),
        "behind": (f"committed:{first.iteration}", f"committed:{at + 1}"),
    }
    killed = rolled_back(tmp_path / "killed", *places[where], cold=cold)
    assert same_result(results(quiet), results(killed))
    assert line(killed) == line(quiet)
    assert [(a.id, a.evidence) for a in alarms(killed)] == [(a.id, a.evidence) for a in alarms(quiet)]


def test_rollbacks_that_do_not_help_end_in_a_pause(tmp_path: Path) -> None:
    always = ANY.replace("ACTION", "rollback").replace("window: 2", "window: 1")
    simulation = Simulation.of(tmp_path, always, "guards.rollback_limit=2", "iterations=4")
    ended = simulation.drive()
    assert ended is not None and ended.state == "paused"
    assert "2 rollbacks to iteration 0 did not help" in ended.reason
    assert [number for number, *_ in line(simulation)] == [0, 1, 2]
    found = [(alarm.action, alarm.branch) for alarm in alarms(simulation)]
    assert found == [("rollback", 0), ("rollback", 1), ("rollback", 2), ("pause", 2)]


def test_a_budget_counts_what_killed_drivers_used_and_ends_the_run_until_it_is_raised(tmp_path: Path) -> None:
    """Each iteration takes 300 s."""
    simulation = Simulation.of(tmp_path, "guards.budget={wall_hours: 0.25}", "iterations=6")
    assert simulation.drive("committed:2") is None
    ended = simulation.drive()
    assert ended is not None and ended.state == "paused" and ended.iteration in (2, 3)
    assert "guard budget: the run has used" in ended.reason
    again = simulation.drive()
    assert again is not None and (again.state, again.iteration) == ("paused", ended.iteration)
    warning, alarm = alarms(simulation)
    assert (warning.action, warning.evidence["threshold"]) == ("alert", 0.25)
    assert (alarm.rule, alarm.evidence["bound"], alarm.evidence["threshold"]) == ("budget", "wall_hours", 0.25)
    revise(simulation.home, simulation.run, ["guards.budget={wall_hours: 99.0}"])
    raised = simulation.drive()
    assert raised is not None and (raised.state, raised.iteration) == ("completed", 6)


def test_a_skipped_update_raises_an_alarm_with_its_iteration(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, "iterations=3")
    not_finite_at(simulation.home.run_folder(simulation.run), 2)
    ended = simulation.drive()
    assert ended is not None and ended.state == "completed"
    (alarm,) = alarms(simulation)
    assert (alarm.rule, alarm.iteration, alarm.evidence["window"]) == ("non_finite", 2, [[2, 1.0]])
