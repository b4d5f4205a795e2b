"""The scheduler on a real ledger: starts, preemption, lost drivers, people's wishes, lost devices, and its own death."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db.core.engine import Fence
from db.core.errors import Conflict, Fenced, LeaseHeld, QueueRefused
from db.core.holder import this_process
from db.core.subjects import QUEUE, subject_of
from db.write.queueing import Submission
from db.write.scheduling import Grant
from flows.queueing.ledger_facts import QueueHistory, progress_of
from flows.queueing.pools_file import pools_file, read_pools
from flows.queueing.scheduler import Scheduler
from tests.flows.queueing.simulated import Killed, World
from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import yaml_text


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "runs")
    with made.ledger:
        yield made


def test_runs_get_devices_of_their_own_and_leave_the_queue_when_they_are_complete(world: World) -> None:
    one, two, three = (world.submit() for _ in range(3))
    world.round()
    assert world.held() == {one: "main:0,1", two: "main:2,3"}
    world.finish()
    assert [world.outcome(run) for run in (one, two, three)] == ["completed"] * 3
    assert [world.ledger.runs.find(run).iteration for run in (one, two, three)] == [4, 4, 4]
    assert all(world.ledger.events.verify(run) is None for run in (one, two, three))


@pytest.mark.parametrize(("until", "left"), [(None, 4), (3, 3), (9, 4)])
def test_a_run_has_left_what_it_is_in_the_queue_for(world: World, until: int | None, left: int) -> None:
    run = world.submit()
    entry = world.ledger.queue.entry(run)
    assert entry is not None
    history = QueueHistory(pools=read_pools(world.home), rows=(), now=entry.submitted_at)
    progress = progress_of(
        ledger=world.ledger, history=history, entry=replace(entry, until=until), held=None, now=entry.submitted_at
    )
    assert progress.left == left


def test_a_driver_sees_only_the_gpus_of_its_run(tmp_path: Path) -> None:
    world = World(tmp_path / "runs", {"pools": {"main": {"gpus": [3, 5, 7]}}})
    with world.ledger:
        world.submit()
        world.round()
        assert [driver.gpus for driver in world.drivers.alive.values()] == [(3, 5)]


def test_a_run_of_higher_priority_preempts_and_the_other_one_resumes_by_itself(world: World) -> None:
    low = world.submit(4, iterations=6)
    world.rounds(4)
    high = world.submit(4, priority=1, iterations=2)
    world.round()
    assert world.ledger.runs.find(low).desired_state == "stop"
    assert world.ledger.queue.rows().held[0].stop_reason == f"preempted by {high}"
    world.finish()
    assert world.outcomes(low) == ["preempted", "completed"]
    assert world.outcome(high) == world.outcome(low) == "completed"
    assert world.ledger.runs.find(low).iteration == 6


def test_a_stop_that_came_before_the_driver_had_the_lease_is_asked_again(world: World) -> None:
    low = world.submit(4, iterations=3)
    world.scheduler.round()  # the driver has not begun when it is preempted
    world.clock.advance(1.0)
    world.submit(4, priority=1, iterations=1)
    world.finish()
    assert world.outcomes(low) == ["preempted", "completed"]


def test_a_lost_driver_is_replaced_on_the_same_devices(world: World) -> None:
    run = world.submit()
    world.rounds(3)
    world.drivers.kill(run)
    world.finish()
    assert world.drivers.started == [run, run]
    assert world.outcomes(run) == ["completed"]


def test_drivers_that_end_before_they_take_the_lease_are_not_started_for_ever_after_a_lost_one(world: World) -> None:
    run = world.submit()
    world.rounds(3)
    world.drivers.kill(run)
    world.drivers.never.add(run)
    world.finish()
    assert world.outcome(run) == "its driver did not start"
    assert world.outcomes(run)[0] == "its driver did not start"
    # The first one, three after it was lost, and two on devices of their own.
    assert world.drivers.started.count(run) == 6


@pytest.mark.parametrize("later", [{"gpus": [0]}, {"gpus": [0, 1, 2]}])
def test_a_gpu_that_the_pools_file_moves_is_given_to_nobody_while_a_run_holds_it(
    tmp_path: Path, later: dict[str, Any]
) -> None:
    world = World(tmp_path / "runs", {"pools": {"main": {"gpus": [0, 1]}}})
    with world.ledger:
        first = world.submit(iterations=9)
        world.rounds(3)
        pools_file(world.home).write_text(yaml_text({"pools": {"other": later}}))
        second = world.submit(1, pools=("other",))
        world.drivers.kill(first)
        world.clock.advance(200.0)
        world.rounds(2)
        assert world.held() == {first: "main:0,1", **({second: "other:2"} if len(later["gpus"]) > 1 else {})}
        assert (0, 1) in [driver.gpus for driver in world.drivers.alive.values()]
        (outcome,) = world.outcomes(first)
        assert outcome is None


def test_the_ledger_refuses_a_gpu_of_another_pool_that_is_held(world: World) -> None:
    one = world.submit()
    two = world.submit()
    world.scheduler.resign()
    fence = world.ledger.leases.take(subject_of(QUEUE), this_process("other"), 9.0)
    world.ledger.scheduling.allocate(fence, Grant(one, "main", (0, 1), 0, False, gpus=True), 0)
    with pytest.raises(Conflict, match="are held by run"):
        world.ledger.scheduling.allocate(fence, Grant(two, "spot", (1,), 0, False, gpus=True), 0)


def test_a_reclaim_shortens_a_stop_and_a_later_deadline_does_not_lengthen_it(world: World) -> None:
    run = world.submit(pools=("spot",), iterations=9)
    world.rounds(3)
    world.ledger.submissions.change(run, "ben", wanted="hold")
    world.scheduler.round()
    assert world.ledger.runs.stop_deadline(run) is None
    world.ledger.submissions.report_outage("spot", [1], 40.0, "cloud")
    world.scheduler.round()
    assert world.ledger.runs.stop_deadline(run) == 40.0
    assert world.ledger.queue.rows().held[0].stop_reason == "its devices are reclaimed"
    (held,) = world.ledger.queue.rows().held
    assert world.scheduler._fence is not None
    world.ledger.scheduling.note_stop(world.scheduler._fence, held, "later", 90.0)
    assert world.ledger.runs.stop_deadline(run) == 40.0


def test_a_stop_that_is_asked_again_keeps_the_deadline_of_the_reclaim(world: World) -> None:
    run = world.submit(pools=("spot",), iterations=9)
    world.scheduler.round()
    world.ledger.submissions.report_outage("spot", [1], 100.0, "cloud")
    world.scheduler.round()
    world.clock.advance(30.0)
    world.drivers.step()
    world.scheduler.round()
    assert world.ledger.runs.stop_deadline(run) == 70.0


def test_an_older_scheduler_asks_no_run_to_stop(world: World) -> None:
    run = world.submit()
    world.rounds(2)
    (held,) = world.ledger.queue.rows().held
    older = world.scheduler._fence
    assert older is not None
    world.scheduler = world.elect()
    with pytest.raises(Fenced):
        world.ledger.scheduling.note_stop(older, held, "preempted", None)
    with pytest.raises(Fenced):
        world.ledger.scheduling.ask_again(older, held, None)
    assert world.ledger.runs.find(run).desired_state == "run"


@pytest.mark.parametrize("how", ["never", "refused"])
def test_a_run_whose_driver_does_not_start_leaves_the_queue_after_three_tries(world: World, how: str) -> None:
    broken = world.submit(name="broken")
    other = world.submit(4)
    getattr(world.drivers, how).add(broken)
    world.finish()
    assert world.drivers.started.count(broken) == 3
    assert world.outcome(broken) == "its driver did not start"
    assert world.outcome(other) == "completed"


@pytest.mark.parametrize(("state", "reason"), [("paused", "guard loss"), ("failed", "out of memory")])
def test_a_run_that_pauses_or_fails_leaves_the_queue_and_can_come_back(world: World, state: str, reason: str) -> None:
    run = world.submit()
    world.rounds(3)
    world.drivers.end(run, state, reason)
    world.round()
    assert world.outcome(run) == f"{state}: {reason}"
    world.ledger.submissions.submit(run, Submission(("main",), "ada", "chat", 0, 2), "ada")
    world.finish()
    assert world.outcome(run) == "completed"


def test_a_run_that_people_stop_leaves_the_queue(world: World) -> None:
    run = world.submit()
    world.rounds(3)
    world.ledger.runs.ask_to_stop(run, "by hand")
    world.rounds(2)
    assert world.outcome(run) == "stopped"


def test_people_hold_runs_back_and_let_them_go_on(world: World) -> None:
    run = world.submit(iterations=5)
    world.rounds(3)
    world.ledger.submissions.change(run, "ben", wanted="hold")
    world.rounds(4)
    assert world.held() == {}
    waited = world.ledger.queue.entry(run)
    world.rounds(3)
    assert waited is not None
    later = world.ledger.queue.entry(run)
    assert later is not None and later.waited_ms == waited.waited_ms and later.waiting_since is None
    world.ledger.submissions.change(run, "ben", wanted="run")
    world.finish()
    assert world.outcomes(run) == ["held", "completed"]


@pytest.mark.parametrize("rounds", [0, 3])
def test_people_remove_runs_that_wait_and_runs_that_hold_devices(world: World, rounds: int) -> None:
    run = world.submit(iterations=9)
    world.rounds(rounds)
    world.ledger.submissions.change(run, "ben", wanted="remove")
    with pytest.raises(QueueRefused, match="is being removed"):
        world.ledger.submissions.change(run, "ben", priority=3)
    world.rounds(3)
    assert world.outcome(run) == "removed"
    assert world.held() == {}


def test_a_run_can_be_in_the_queue_once_only(world: World) -> None:
    run = world.submit()
    with pytest.raises(QueueRefused, match="in the queue already"):
        world.ledger.submissions.submit(run, Submission(("main",), "ada", "chat", 0, 2), "ada")
    with pytest.raises(QueueRefused, match="is not in the queue"):
        world.ledger.submissions.change(world.ledger.runs.create("lone", {}, "d", 1).id, "ada", priority=1)


def test_a_run_on_reclaimed_devices_goes_on_elsewhere(world: World) -> None:
    run = world.submit(pools=("spot", "main"), iterations=6)
    world.rounds(3)
    assert world.held() == {run: "spot:0,1"}
    world.ledger.submissions.report_outage("spot", [1], 120.0, "cloud")
    world.rounds(3)
    assert world.held() == {run: "main:0,1"}
    world.ledger.submissions.end_outage("spot", [1])
    world.finish()
    assert world.outcomes(run) == ["reclaimed", "completed"]


def test_a_driver_that_dies_with_its_devices_is_replaced_on_others(world: World) -> None:
    run = world.submit(pools=("spot", "main"), iterations=6)
    world.rounds(3)
    world.ledger.submissions.report_outage("spot", [0, 1], 0.0, "cloud")
    world.drivers.kill(run)
    world.finish()
    assert world.outcomes(run) == ["reclaimed", "completed"]
    assert world.ledger.queue.allocations(runs=[run])[1].pool == "main"


def test_the_interval_of_checkpoints_becomes_the_best_one_at_the_next_start(world: World) -> None:
    run = world.submit(4, iterations=9, checkpoints="auto")
    world.home.run_folder(run).mkdir()
    world.rounds(6)
    assert world.ledger.runs.revision(run).revision == 1
    world.submit(4, priority=1, iterations=1)
    world.rounds(8)
    revised = world.ledger.runs.revision(run)
    assert (revised.revision, revised.spec["checkpoints"]["every"]) == (2, 1)  # these checkpoints take no time


def test_predictions_are_recorded_and_scored(world: World) -> None:
    run = world.submit(iterations=10)
    world.finish()
    rows = world.ledger.queue.forecasts([run])
    assert rows[0].tenth >= 2  # nothing is predicted before three iterations
    assert all(row.actual_cost is not None and row.ended_at is not None for row in rows)
    predicted = rows[-1].cost
    actual = rows[-1].actual_cost
    assert predicted is not None and actual is not None and abs(predicted - actual) / actual < 0.3


def test_there_is_one_scheduler_and_a_newer_one_fences_the_older(world: World) -> None:
    second = Scheduler(world.home, world.ledger, world.drivers)
    world.scheduler.round()
    with pytest.raises(LeaseHeld, match="the queue is held by yatt scheduler"):
        second.lead()
    older = world.scheduler
    world.scheduler = world.elect()
    run = world.submit()
    with pytest.raises(Fenced):
        older.round()
    assert world.held() == {}
    world.round()
    assert list(world.held()) == [run]


def test_a_bad_pools_file_is_an_error_and_changes_nothing(world: World) -> None:
    world.submit()
    world.round()
    pools_file(world.home).write_text("pools: {main: {device: 4}}\n")
    with pytest.raises(ConfigurationError, match=r"pools\.yaml: pools\.main\.device: .*did you mean 'devices'"):
        world.scheduler.round()
    assert world.held()


WRITES = (
    "allocate",
    "note_driver",
    "note_stop",
    "release",
    "end",
    "note_reasons",
    "note_forecast",
    "ask_again",
)


def killed_at(world: World, monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> Callable[[], int]:
    """Makes the scheduler die after each of the given writes; returns the count of its writes."""
    taken = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **options: Any) -> Any:
            nonlocal taken
            result = real(*arguments, **options)
            taken += 1
            if taken in steps:
                raise Killed
            return result

        return write

    for name in WRITES:
        monkeypatch.setattr(world.ledger.scheduling, name, dying(getattr(world.ledger.scheduling, name)))
    renew = world.ledger.leases.renew
    renew_and_die = dying(renew)

    def renewing(fence: Fence, ttl_seconds: float) -> None:
        (renew_and_die if fence.subject == subject_of(QUEUE) else renew)(fence, ttl_seconds)

    monkeypatch.setattr(world.ledger.leases, "renew", renewing)
    monkeypatch.setattr(world.drivers, "start", dying(world.drivers.start))
    return lambda: taken


def play(world: World) -> list[str]:
    """Three runs over two pools, one of which is preempted and one reclaimed."""
    runs = [world.submit(4, iterations=9), world.submit(2, pools=("spot", "main"), iterations=5, owner="ben")]
    world.rounds(4)
    runs.append(world.submit(4, priority=2, iterations=3))
    world.ledger.submissions.report_outage("spot", [0], 60.0, "cloud")
    world.rounds(4)
    world.ledger.submissions.end_outage("spot", [0])
    world.finish()
    return runs


def assert_played(world: World, runs: list[str]) -> None:
    assert [world.outcome(run) for run in runs] == ["completed"] * 3
    assert [world.ledger.runs.find(run).iteration for run in runs] == [9, 5, 3]
    assert not world.drivers.alive
    assert all(world.ledger.events.verify(run) is None for run in runs)
    assert "preempted" in world.outcomes(runs[0])


def test_a_scheduler_that_dies_ten_times_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(world, monkeypatch, set(range(3, 53, 5)))
    assert_played(world, play(world))
    assert world.deaths == 10


@pytest.mark.verify
def test_a_scheduler_may_die_after_any_of_its_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = 1
    done = False
    while not done:
        world = World(tmp_path / f"step-{step}")
        with world.ledger, monkeypatch.context() as patch:
            count = killed_at(world, patch, {step})
            assert_played(world, play(world))
            done = count() < step
        step += 1
    assert step > 20


def test_a_run_that_waits_without_devices_lets_others_have_them_and_gets_others_once_it_can_go_on(world: World) -> None:
    first = world.submit(4, iterations=6)
    world.rounds(3)
    second = world.submit(4, iterations=2)
    world.drivers.give_back(first, "judge 'kind'")
    world.rounds(2)
    assert world.held() == {second: "main:0,1,2,3"}
    entry = world.ledger.queue.entry(first)
    assert entry is not None and (entry.state, entry.reason) == ("waiting", "waits for judge 'kind'")
    world.ledger.submissions.change(first, "ann", wanted="hold")
    world.ledger.submissions.change(first, "ann", wanted="run")
    world.rounds(6)
    assert world.outcome(second) == "completed" and world.held() == {}, "nobody starts a second driver of the first run"
    assert not world.drivers.come_back(first)
    world.finish()
    assert world.outcomes(first) == ["waits for judge 'kind'", "completed"]
    assert world.ledger.runs.find(first).iteration == 6


def test_a_run_that_takes_its_devices_again_in_time_keeps_them(world: World) -> None:
    run = world.submit(4, iterations=6)
    world.rounds(3)
    world.drivers.give_back(run, "judge 'kind'")
    assert world.drivers.come_back(run), "the scheduler has not seen it yet"
    world.finish()
    assert world.outcomes(run) == ["completed"]


@pytest.mark.parametrize("state", ["paused", "stopped", "lost"])
def test_a_run_whose_driver_ends_while_it_waits_without_devices(world: World, state: str) -> None:
    run = world.submit(4, iterations=6)
    world.rounds(3)
    world.drivers.give_back(run, "judge 'kind'")
    world.rounds(2)
    if state == "lost":
        world.drivers.kill(run)
        world.finish()
        assert world.outcome(run) == "completed", "another driver goes on"
        return
    if state == "stopped":
        world.ledger.runs.ask_to_stop(run, "yatt stop")
    world.drivers.end(run, state, "waited for 2 h")
    world.rounds(2)
    assert world.outcome(run) == ("paused: waited for 2 h" if state == "paused" else "stopped")


def test_a_run_that_waits_without_devices_can_be_removed(world: World) -> None:
    run = world.submit(4, iterations=6)
    world.rounds(3)
    world.drivers.give_back(run, "judge 'kind'")
    world.rounds(2)
    world.ledger.submissions.change(run, "ann", wanted="remove")
    world.round()
    assert world.ledger.runs.find(run).desired_state == "stop", "its driver is asked to end"
    world.rounds(2)
    assert world.outcome(run) == "removed"


def test_a_run_that_is_preempted_while_it_gives_its_devices_back_resumes_by_itself(world: World) -> None:
    low = world.submit(4, iterations=6)
    world.rounds(3)
    high = world.submit(4, priority=1, iterations=2)
    world.scheduler.round()
    world.drivers.give_back(low, "judge 'kind'")
    world.finish()
    assert world.outcomes(low) == ["preempted", "completed"] and world.outcome(high) == "completed"
