"""Windows of a deployment that end without driving: missed, held, paused, completed; and what they record."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal

from db.core.engine import Fence
from db.core.errors import RunNotFound
from db.core.holder import Holder, this_process
from db.ledger import Ledger
from flows import launch
from flows.branching.branches import revise
from flows.driver.windows import Window
from flows.run.creation import create_run, current_spec
from flows.run.home import Home
from flows.run.lease import KEEPER, take_lease
from flows.run.owner import owner_of
from flows.run.protocols import OutboxItem, SilentObserver
from flows.schedule import scheduled, window_start
from flows.schedule.parameters import WindowParameters
from flows.schedule.scheduled import drive_window, stopped_in_order
from flows.schedule.window_record import record_window, recorded_windows
from flows.schedule.window_start import BegunWindow, Ending, begin_window
from ops.cli.commands.inspection.show import run_facts
from ops.preflight.new_runs import refused_since
from ops.preflight.run import check_functions
from ops.queries.run import run_view
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.errors import ConfigurationError
from yatt_core.problems import Problems
from yatt_core.spec import RunSpec, override_spec

HOUR = timedelta(hours=1)
NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
FAR = Holder("another host", "boot", 1, 1, "yatt driver of toy-1 (pid 1 on far)")


class NoTracker:
    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> dict[str, str]:
        raise AssertionError("nothing is delivered")


@dataclass
class FakeClock:
    """A clock that advances only by sleeping."""

    now: datetime = NOON
    slept: list[float] = field(default_factory=list)
    on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now.timestamp()

    def time_ms(self) -> int:
        return round(self.now.timestamp() * 1000)

    def sleep(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.slept.append(seconds)
        self.on_sleep()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(window_start, "reap", lambda ledger, home: [])  # there is no Prefect server here
    monkeypatch.setattr(scheduled, "LOOK_SECONDS", 30.0)
    return Home(tmp_path / "runs")


def own(home: Home, run: str) -> str | None:
    """Returns the run's owner as recorded in deployments created for this home; None if the run is not in it."""
    with Ledger.open(home.ledger) as ledger, suppress(RunNotFound):
        return owner_of(ledger, run)
    return None


def ending_of_window(
    home: Home,
    run: str,
    clock: FakeClock,
    begins: datetime | None = NOON,
    hours: float = 8,
    owner: str | None = "",
    parameters: WindowParameters | None = None,
) -> Ending:
    """Returns the ending of a flow run scheduled for `begins`, or started manually if `begins` is None.

    owner: the owner that its deployment names; by default the owner of this home's run.
    """
    owner = own(home, run) if owner == "" else owner
    flow_run = FlowRun(flow_id=uuid4(), auto_scheduled=begins is not None, expected_start_time=begins or NOON)
    with FlowRunContext.model_construct(flow_run=flow_run):
        parameters = replace(parameters or WindowParameters(), window=f"{round(hours * 60)}m")
        begun = begin_window(home, run, owner, parameters, lambda spec, copies, accepted: [], clock)
        if not isinstance(begun, BegunWindow):
            return begun
        return drive_window(home, begun, SilentObserver(), {"mlflow": NoTracker()}, clock=clock)


def said(home: Home, run: str) -> list[str]:
    with Ledger.open(home.ledger) as ledger:
        return [link.body["why"] for link in ledger.events.of_kind(run, "window_left")]


def test_a_window_that_is_over_does_nothing_and_says_so(home: Home) -> None:
    run = seed_run(home)
    ending = ending_of_window(home, run, FakeClock(NOON + 9 * HOUR))
    assert (ending.type.value, ending.name) == ("COMPLETED", "Missed")
    assert f"run {run} " in ending.message and "2027-01-01 20:00:00 UTC" in ending.message
    assert said(home, run) == [ending.message]
    with Ledger.open(home.ledger) as ledger:
        assert ledger.overview.line(run).term == 1, "the lease was not requested"
        (record,) = recorded_windows(ledger, run).values()
    assert record.window == Window(NOON, NOON + 8 * HOUR) and record.process.pid == this_process().pid


def test_a_manual_window_begins_when_it_starts(home: Home) -> None:
    run = seed_run(home, spec=untracked(toy_spec(2)))
    complete(home, run)
    ending = ending_of_window(home, run, FakeClock(NOON + 9 * HOUR), begins=None)
    assert ending.name == "Completed"
    with Ledger.open(home.ledger) as ledger:
        (record,) = recorded_windows(ledger, run).values()
    assert record.window == Window(NOON + 9 * HOUR, NOON + 17 * HOUR)


def complete(home: Home, run: str) -> None:
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process(), 60)
        ledger.runs.set_state(fence, "completed", "target reached")
        ledger.leases.release(fence)


def test_a_window_of_a_completed_run_says_so(home: Home) -> None:
    run = seed_run(home, spec=untracked(toy_spec(2)))
    complete(home, run)
    ending = ending_of_window(home, run, FakeClock(NOON))
    assert (ending.type.value, ending.name) == ("COMPLETED", "Completed")
    assert ending.message == f"run {run} is completed at iteration 2: target reached before"
    with Ledger.open(home.ledger) as ledger:
        assert ledger.overview.line(run).holder is None


def untracked(spec: RunSpec) -> RunSpec:
    return spec.model_copy(update={"tracking": spec.tracking.model_copy(update={"enabled": False})})


def test_a_paused_run_is_not_driven_until_somebody_resumes_it(home: Home) -> None:
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process(), 60)
        ledger.runs.set_state(fence, "paused", "the reward model is gone: token=abc")
        ledger.leases.release(fence)
    ending = ending_of_window(home, run, FakeClock())
    assert (ending.type.value, ending.name) == ("FAILED", "Paused")
    assert "the reward model is gone" in ending.message and f"`yatt resume {run}`" in ending.message
    assert "abc" not in ending.message and "abc" not in "".join(said(home, run))


def test_a_held_run_is_left_to_its_holder_who_is_named(home: Home) -> None:
    run = seed_run(home)
    clock = FakeClock()
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(run, FAR, 600.0)
    ending = ending_of_window(home, run, clock)
    assert (ending.type.value, ending.name) == ("COMPLETED", "Held")
    assert ending.message == f"run {run} is held by {FAR.text}: nothing was done" and said(home, run) == [
        ending.message
    ]
    assert 540 <= sum(clock.slept) <= 600, "by then the lease of a dead holder would have expired"
    with Ledger.open(home.ledger) as ledger:
        assert ledger.overview.line(run).holder == FAR.text


def test_a_window_waits_for_a_keeper_until_its_own_end(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "take_lease", partial(take_lease, patience=0.0))
    run = seed_run(home, spec=untracked(toy_spec(2)))
    complete(home, run)
    clock = FakeClock()
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, replace(FAR, text=f"{KEEPER} (pid 1 on far)"), 60.0)

    def end_after_an_hour() -> None:
        if clock.now == NOON + HOUR:
            with Ledger.open(home.ledger) as ledger:
                ledger.leases.release(fence)

    clock.on_sleep = end_after_an_hour
    assert "target reached before" in ending_of_window(home, run, clock).message and clock.now == NOON + HOUR
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(run, replace(FAR, text=f"{KEEPER} (pid 1 on far)"), 60.0)
    clock = FakeClock()
    assert ending_of_window(home, run, clock, hours=0.5).name == "Held" and clock.now == NOON + 0.5 * HOUR


def window_before(home: Home, run: str) -> Fence:
    """Records a window that ends when this one begins but is still driving, on another host."""
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, FAR, 600.0)
        record_window(ledger, run, "the flow run before", Window(NOON - 8 * HOUR, NOON), FAR)
        ledger.leases.start_session(fence, "the flow run before", run)
    return fence


def test_a_window_waits_for_the_last_checkpoint_of_the_previous_one(home: Home) -> None:
    run = seed_run(home, spec=untracked(toy_spec(2)))
    complete(home, run)
    fence = window_before(home, run)
    clock = FakeClock()

    def end_after_a_while() -> None:
        if clock.now >= NOON + timedelta(minutes=2) and not given_back:
            given_back.append(fence)
            with Ledger.open(home.ledger) as ledger:
                ledger.leases.release(fence)

    given_back: list[Fence] = []
    clock.on_sleep = end_after_a_while
    ending = ending_of_window(home, run, clock)
    assert given_back and ending.name == "Completed" and "target reached before" in ending.message


def test_a_window_leaves_a_run_that_was_paused_while_it_waited(home: Home) -> None:
    run = seed_run(home)
    fence = window_before(home, run)
    clock = FakeClock()

    def pause_at_the_end() -> None:
        with Ledger.open(home.ledger) as ledger:
            if ledger.overview.line(run).holder is not None:
                ledger.runs.set_state(fence, "paused", "guard kl: too high")
                ledger.leases.release(fence)

    clock.on_sleep = pause_at_the_end
    ending = ending_of_window(home, run, clock)
    assert ending.name == "Paused" and "guard kl: too high" in ending.message
    with Ledger.open(home.ledger) as ledger:
        assert ledger.overview.line(run).holder is None and len(ledger.overview.sessions(run)) == 2


def test_a_window_does_not_wait_past_its_own_end(home: Home) -> None:
    run = seed_run(home)
    window_before(home, run)
    clock = FakeClock()
    ending = ending_of_window(home, run, clock, hours=0.1)
    assert ending.name == "Held" and clock.now == NOON + 0.1 * HOUR


def test_a_missing_run_is_a_failure_with_a_message(home: Home) -> None:
    seed_run(home)
    ending = ending_of_window(home, "toy-7", FakeClock())
    assert ending.type.value == "FAILED"
    assert ending.message is not None and ending.message.startswith("there is no run 'toy-7' in this ledger")


@pytest.mark.parametrize("named", ["another ledger's", "none"])
def test_a_deployment_of_another_ledgers_run_of_the_same_name_is_refused(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    other = Home(tmp_path / "other")
    run = seed_run(home)
    assert seed_run(other) == run
    owner = own(other, run) if named != "none" else None
    monkeypatch.setenv("YATT_LEDGER", home.ledger)
    ending = ending_of_window(home, run, FakeClock(), owner=owner)
    assert (ending.type.value, ending.name) == ("FAILED", "Failed")
    if owner is None:
        assert f"owner of run {run}" in ending.message
        assert "another run" not in ending.message
    else:
        assert f"this worker's ledger {home.ledger}" in ending.message and owner in ending.message
    assert f"`yatt deploy --run {run} --name NAME`" in ending.message
    with Ledger.open(home.ledger) as ledger:
        assert not recorded_windows(ledger, run) and ledger.overview.line(run).term == 1, "it is left unchanged"


def revisions(home: Home, run: str) -> list[str]:
    with Ledger.open(home.ledger) as ledger:
        newest = ledger.runs.revision(run).revision
        return [ledger.runs.revision(run, number).reason for number in range(1, newest + 1)]


def test_overrides_become_a_revision_and_are_recorded_with_the_window(home: Home) -> None:
    run = seed_run(home, spec=untracked(toy_spec(2)))
    complete(home, run)
    parameters = WindowParameters(overrides={"recovery.lease_seconds": 7.5})
    ending = ending_of_window(home, run, FakeClock(), parameters=parameters)
    assert ending.name == "Completed" and "target reached before" in ending.message
    assert revisions(home, run)[1:] == ["--set recovery.lease_seconds=7.5"]
    with Ledger.open(home.ledger) as ledger:
        (record,) = recorded_windows(ledger, run).values()
    assert record.parameters == {"overrides": {"recovery.lease_seconds": 7.5}, "window": "480m"}
    ending_of_window(home, run, FakeClock(), parameters=parameters)
    assert len(revisions(home, run)) == 2, "the same values again change nothing"


def test_a_windows_parameters_are_shown_with_its_session(home: Home) -> None:
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        (session,) = ledger.overview.sessions(run)
        window = Window(NOON, None)
        record_window(ledger, run, session.flow_run_id, window, FAR, WindowParameters(iterations=9).given())
        (shown,) = run_facts(ledger, home, run)["sessions"]
        assert shown["parameters"] == {"iterations": 9}
        assert run_view(ledger, run).windows == {session.flow_run_id: {"iterations": 9}}


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (WindowParameters(overrides={"trainer.optimizer.lerning_rate": 1e-3}), "did you mean 'learning_rate'"),
        (WindowParameters(overrides={"seed": 7}), "--set seed"),
        (WindowParameters(overrides={"callbacks": [{"function": "os:getcwd"}]}), "callbacks.0.function: names code"),
        (WindowParameters(iterations=1), "iteration 2 is committed"),
        (WindowParameters(iterations=3, overrides={"iterations": 4}), "iterations: "),
        (WindowParameters(run="new", overrides={"iteratons": 4}), "did you mean 'iterations'"),
    ],
)
def test_refused_parameters_change_nothing_and_say_why(home: Home, parameters: WindowParameters, says: str) -> None:
    run = seed_run(home, spec=untracked(toy_spec(2)))
    ending = ending_of_window(home, run, FakeClock(), parameters=parameters)
    assert (ending.type.value, ending.name) == ("FAILED", "Failed")
    assert ending.message.startswith("configuration: ") and says in ending.message
    with Ledger.open(home.ledger) as ledger:
        (left,) = ledger.events.of_kind(run, "window_left")
        assert [row.id for row in ledger.runs.list()] == [run] and ledger.overview.line(run).holder is None
        assert len(ledger.overview.sessions(run)) == 1, "no session was started"
    assert left.body["failure_class"] == "configuration" and left.body["why"] == ending.message
    assert left.body["parameters"] == replace(parameters, window="480m").given()
    assert len(revisions(home, run)) == 1


def test_what_a_window_names_is_judged_by_the_spec_that_it_changes(home: Home) -> None:
    """While the window waits for the run's holder, the run's spec loses what the window's change names."""
    run = seed_run(home, spec=untracked(toy_spec(2)))
    complete(home, run)
    named = [{"function": "os:getcwd"}]
    revise(home, run, [f"callbacks={json.dumps(named)}"])
    clock = FakeClock()
    released = list[int]()
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, FAR, 3600.0)

        def lose() -> None:
            ledger.leases.release(fence)
            released.append(revise(home, run, ["callbacks=[]"]))
            clock.on_sleep = lambda: None

        clock.on_sleep = lose
        parameters = WindowParameters(overrides={"callbacks": named, "recovery.lease_seconds": 7.5})
        ending = ending_of_window(home, run, clock, parameters=parameters)
    assert released == [3], "the window waited"
    assert ending.type.value == "FAILED" and "callbacks.0.function: names code" in ending.message
    assert len(revisions(home, run)) == 3


def test_a_held_run_keeps_its_spec(home: Home) -> None:
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(run, FAR, 600.0)
    ending = ending_of_window(home, run, FakeClock(), parameters=WindowParameters(iterations=9))
    assert ending.name == "Held" and "nothing was done" in ending.message and len(revisions(home, run)) == 1


def test_a_new_run_has_the_reward_files_of_the_deployments_run(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_start, "rename_flow_run", lambda flow_run, name: None)  # there is no Prefect server here
    file = tmp_path / "reward.py"
    file.write_text("def score(prompt, response):\n    return 1.0\n")
    spec = override_spec(toy_spec(), [f"rewards.parts=[{{name: own, file: '{file}:score'}}]"], "toy")
    run = create_run(home, spec)
    (kept,) = (home.run_folder(run) / "code").glob("*/reward.py")
    file.write_text("raise SystemExit\n")
    flow_run = FlowRun(id=uuid4(), flow_id=uuid4(), expected_start_time=NOON)
    begun = []
    for _ in range(2):  # the second one is the same flow run, tried again
        with FlowRunContext.model_construct(flow_run=flow_run):
            parameters = WindowParameters("new", {"rewards.parts.0.weight": 0.5})
            begun.append(begin_window(home, run, own(home, run), parameters, check_files, FakeClock()))
    first, again = begun
    assert isinstance(first, BegunWindow) and isinstance(again, BegunWindow), begun
    assert first.run == again.run == "toy-2" and first.changes == ()
    (copy,) = (home.run_folder(first.run) / "code").glob("*/reward.py")
    assert copy.read_text() == kept.read_text() and copy.parent.name == kept.parent.name
    with Ledger.open(home.ledger) as ledger:
        assert current_spec(ledger, "toy-2").rewards.parts[0].weight == 0.5
        assert current_spec(ledger, run).rewards.parts[0].weight == 1.0


def check_files(spec: RunSpec, copies: Path, accepted: bool) -> list[str]:
    problems = Problems()
    check_functions(spec, problems, copies)
    problems.raise_any()
    return []


def test_a_new_run_with_the_model_of_its_deployment_is_made_although_this_version_refuses_it(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(window_start, "rename_flow_run", lambda flow_run, name: None)  # there is no Prefect server here
    run = create_run(home, override_spec(toy_spec(), ["model.architecture=qwen2"], "toy"))

    def check(spec: RunSpec, copies: Path, accepted: bool) -> list[str]:
        refused = refused_since(spec)
        assert refused
        if not accepted:
            raise ConfigurationError("\n".join(refused))
        return refused

    def begun(overrides: Mapping[str, Any]) -> BegunWindow | Ending:
        flow_run = FlowRun(id=uuid4(), flow_id=uuid4(), expected_start_time=NOON)
        with FlowRunContext.model_construct(flow_run=flow_run):
            return begin_window(home, run, own(home, run), WindowParameters("new", overrides), check, FakeClock())

    made = begun({"rewards.parts.0.weight": 0.5})
    assert isinstance(made, BegunWindow) and made.run == "toy-2"
    assert f"the new run of the deployment of {run}: model.architecture: " in caplog.text
    refused = begun({"model.hidden_size": 64})
    assert not isinstance(refused, BegunWindow) and "expected qwen3 or llama" in (refused.message or "")


def during_the_start(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    monkeypatch.setattr("flows.driver.services.SessionServices.choose_server", lambda services: act())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_window_cancelled_during_its_start_stops_as_one_that_trains(
    home: Home, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """In place of Prefect's handler of SIGTERM, which ends a flow run as crashed."""
    run = seed_run(home, spec=untracked(toy_spec(9)))
    during_the_start(monkeypatch, lambda: os.kill(os.getpid(), number))

    def crash(*_: object) -> None:
        raise TerminationSignal(number)

    previous = signal.signal(number, crash)
    try:
        ending = stopped_in_order(home, run, lambda: ending_of_window(home, run, FakeClock()))
        assert signal.getsignal(number) is crash, "the handler is restored"
    finally:
        signal.signal(number, previous)
    assert (ending.type.value, ending.name) == ("COMPLETED", "Completed")
    assert ending.message == f"run {run} is stopped at iteration 2: the window was asked to stop during its start"
    with Ledger.open(home.ledger) as ledger:
        line = ledger.overview.line(run)
        assert (line.run.state, line.run.state_reason, line.holder) == ("stopped", "stop requested", None)
        assert ledger.leases.lost_in_a_row(run, "yatt driver of ", 0) == 0


def test_a_window_cancelled_before_it_holds_the_run_leaves_it_alone(home: Home) -> None:
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        head = ledger.events.head(run)

    def body() -> Ending:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal interrupts at once")

    ending = stopped_in_order(home, run, body)
    assert ending.name == "Completed" and f"run {run} is stopped at iteration 2" in (ending.message or "")
    with Ledger.open(home.ledger) as ledger:
        assert ledger.events.head(run) == head
