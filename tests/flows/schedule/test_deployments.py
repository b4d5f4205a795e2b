"""Deployments on the real service group: Prefect's scheduler and worker start windows; runs survive any death."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from db.ledger import Ledger
from flows.prefect_io.prefect_server import worker_name
from flows.run.home import Home
from flows.run.owner import owner_of
from flows.schedule.window_record import recorded_windows
from ops.scheduled import WINDOW_LOG
from tests.flows.group import SPEC, Group, running_group
from tests.flows.tools import Driver, same_result
from tests.recovery.nursery import Nursery

pytestmark = [pytest.mark.verify, pytest.mark.timeout(1500)]
ITERATIONS = 30
SLOW = (f"iterations={ITERATIONS}", "rollout.engine.base_seconds=0.2")
"""Makes an iteration take more than half a second, so that a window of seconds does not reach the target."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, service_environment: Mapping[str, str]) -> Iterator[Group]:
    home = tmp_path_factory.mktemp("group") / "runs"
    with running_group(home, service_environment) as group:
        yield group


@pytest.fixture(scope="module")
def drivers(group: Group, nursery: Nursery) -> Driver:
    return Driver(group.home, nursery)


def overrides(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def ledger_of(group: Group) -> Ledger:
    return Ledger.open(Home(group.home).ledger, migrate=False)


def process_of(group: Group, run: str, flow_run: str) -> int:
    """Waits until a window has begun, and returns its process id."""

    def look() -> int | None:
        with ledger_of(group) as ledger:
            record = recorded_windows(ledger, run).get(flow_run)
            return None if record is None else record.process.pid

    return int(group.await_true(f"the process of {flow_run}", look))


def second_window_at_work(group: Group, run: str) -> str | None:
    """Returns the flow run of the run's second session once it has committed something."""
    with ledger_of(group) as ledger:
        sessions = ledger.overview.sessions(run)
        if len(sessions) < 2:
            return None
        commits = [link for link in ledger.events.of_kind(run, "commit") if link.body["term"] == sessions[1].term]
        return sessions[1].flow_run_id if commits else None


def test_three_windows_of_which_one_is_killed_end_like_an_undisturbed_run(group: Group, drivers: Driver) -> None:
    schedule = ("--interval", "40s", "--for", "30s", "--name", "mini")
    run = group.yatt("deploy", str(SPEC), *schedule, *overrides(*SLOW))["run"]
    killed = group.await_true("the second window", lambda: second_window_at_work(group, run))
    os.kill(process_of(group, run, killed), signal.SIGKILL)
    group.await_true("the end of the run", lambda: is_completed(group, run))
    later = group.await_true("a window after the end", lambda: window_after_the_end(group, run))
    group.prefect("deployment", "delete", "yatt/mini")
    assert later["state"]["message"] == f"run {run} is completed at iteration {ITERATIONS}: target reached before"

    with ledger_of(group) as ledger:
        sessions = [session for session in ledger.overview.sessions(run) if session.outcome is not None]
        assert len(sessions) >= 3 and [s.flow_run_id for s in sessions if s.outcome == "lost"] == [killed]
        states = {s.flow_run_id: group.ask(f"/flow_runs/{s.flow_run_id}") for s in sessions}
        commits = [link.body["iteration"] for link in ledger.events.of_kind(run, "commit")]
        last = {link.body["term"]: link.body["iteration"] for link in ledger.events.of_kind(run, "commit")}
        stops = [link.body for link in ledger.events.of_kind(run, "state") if link.body["state"] == "stopped"]
        kept = {row.iteration for row in ledger.overview.show(run).checkpoints}
        assert ledger.events.verify(run) is None
    assert commits == list(range(ITERATIONS + 1)), "gapless, each once"
    assert stops and all(stop["reason"].startswith("its window is over: ") for stop in stops)
    assert {last[stop["term"]] for stop in stops if stop["term"] in last} <= kept, "a window ends with a checkpoint"
    assert all(flow_run["auto_scheduled"] and flow_run["name"] == run for flow_run in states.values())
    assert {key: flow_run["state_type"] for key, flow_run in states.items()} == {
        key: "CRASHED" if key == killed else "COMPLETED" for key in states
    }
    undisturbed = drivers.create("virtual.yaml", f"iterations={ITERATIONS}")
    drivers.drive(undisturbed)
    assert same_result(drivers.results(run), drivers.results(undisturbed))


def is_completed(group: Group, run: str) -> bool:
    with ledger_of(group) as ledger:
        line = ledger.overview.line(run)
    return line.run.state == "completed" and line.holder is None


def window_after_the_end(group: Group, run: str) -> dict[str, Any] | None:
    done = [flow_run for flow_run in group.flow_runs("mini") if "before" in (flow_run["state"]["message"] or "")]
    return done[0] if done else None


def test_a_manual_window_drives_until_its_end_and_leaves_a_held_run_alone(group: Group, drivers: Driver) -> None:
    words = ("--manual", "--for", "20s", "--name", "by-hand")
    run = group.yatt("deploy", str(SPEC), *words, *overrides(*SLOW))["run"]
    driver = drivers.start(run)
    group.await_true("the driver's lease", lambda: holder_of(group, run))
    name, message = group.ending(group.start_by_hand("by-hand"))
    assert name == "Held" and message == f"run {run} is held by {holder_of(group, run)}: nothing was done"
    assert f"pid {driver.pid}" in message
    driver.signal(signal.SIGTERM)
    assert driver.wait(150) == 0
    name, message = group.ending(group.start_by_hand("by-hand"))
    with ledger_of(group) as ledger:
        commits = [link.body["iteration"] for link in ledger.events.of_kind(run, "commit")]
    assert name == "Completed"
    assert message.startswith(f"run {run} is stopped at iteration {commits[-1]}: its window is over: ")
    assert commits == list(range(len(commits))), "gapless, each once"


def holder_of(group: Group, run: str) -> str | None:
    with ledger_of(group) as ledger:
        return ledger.overview.line(run).holder


def test_missed_windows_are_not_caught_up(group: Group) -> None:
    worker = group.member_pid("worker")
    os.kill(worker, signal.SIGSTOP)
    try:
        words = ("--interval", "20s", "--for", "19s", "--name", "away")
        run = group.yatt("deploy", str(SPEC), *words, *overrides(*SLOW))["run"]
        group.await_true("late flow runs", lambda: len(group.flow_runs("away")) >= 3)
    finally:
        os.kill(worker, signal.SIGCONT)
    missed = group.await_true(
        "missed windows", lambda: [r for r in group.flow_runs("away") if r["state_name"] == "Missed"]
    )
    group.await_true("a window that drives", lambda: holder_of(group, run))
    group.prefect("deployment", "delete", "yatt/away")
    assert all(r["state_type"] == "COMPLETED" and "nothing was done" in r["state"]["message"] for r in missed)
    group.await_true("the end of the window", lambda: holder_of(group, run) is None)
    with ledger_of(group) as ledger:
        drove = {session.flow_run_id for session in ledger.overview.sessions(run)}
        commits = [link.body["iteration"] for link in ledger.events.of_kind(run, "commit")]
    assert not drove & {flow_run["id"] for flow_run in missed}
    assert commits == list(range(len(commits))), "each once"


def test_a_window_outlives_its_worker_and_keeps_logging(group: Group) -> None:
    run = group.yatt("deploy", str(SPEC), "--manual", "--name", "outliving", *overrides(*SLOW))["run"]
    flow_run = group.start_by_hand("outliving")
    group.await_true("a commit", lambda: commits_of(group, run))
    os.kill(group.member_pid("worker"), signal.SIGKILL)
    before = len(commits_of(group, run))
    name, message = group.ending(flow_run)
    assert name == "Completed" and "target reached" in message
    assert before < ITERATIONS and commits_of(group, run) == list(range(ITERATIONS + 1))
    said = (Home(group.home).run_folder(run) / WINDOW_LOG).read_text()
    assert "stopping" in said or "iteration" in said, said


def commits_of(group: Group, run: str) -> list[int]:
    with ledger_of(group) as ledger:
        return [link.body["iteration"] for link in ledger.events.of_kind(run, "commit")]


def test_a_window_that_died_with_its_worker_is_closed(group: Group) -> None:
    run = group.yatt("deploy", str(SPEC), "--manual", "--name", "doomed", *overrides(*SLOW))["run"]
    flow_run = group.start_by_hand("doomed")
    driver = process_of(group, run, flow_run)
    worker = group.member_pid("worker")
    os.kill(worker, signal.SIGKILL)
    os.kill(driver, signal.SIGKILL)
    name, message = group.ending(flow_run)
    assert (
        name == "Crashed" and message == f"its process is gone: window of {run} (pid {driver} on {os.uname().nodename})"
    )


def test_a_window_that_died_with_its_worker_before_it_began_is_closed(group: Group) -> None:
    group.yatt("deploy", str(SPEC), "--manual", "--name", "stillborn", *overrides(*SLOW))
    flow_run = group.start_by_hand("stillborn")
    asked = f"/flow_runs/{flow_run}"
    process = int(group.await_true("its process", lambda: group.ask(asked)["infrastructure_pid"]))
    os.kill(group.member_pid("worker"), signal.SIGKILL)
    os.kill(process, signal.SIGKILL)
    name, message = group.ending(flow_run)
    assert name == "Crashed" and message == f"its process is gone: pid {process} of worker {worker_name()}"


def test_a_prefect_yaml_creates_the_same_deployment_as_the_command(group: Group, tmp_path: Path) -> None:
    words = ("--cron", "0 22 * * *", "--for", "8h", "--timezone", "Europe/Berlin")
    run = group.yatt("deploy", str(SPEC), *words, "--name", "direct")["run"]
    file = tmp_path / "prefect.yaml"
    group.yatt("deploy", "--run", run, *words, "--name", "from-file", "--file", str(file))
    group.prefect("--no-prompt", "deploy", "--all", cwd=tmp_path)
    direct, from_file = (group.ask(f"/deployments/name/yatt/{name}") for name in ("direct", "from-file"))
    assert plain(direct) == plain(from_file)
    with ledger_of(group) as ledger:
        owner = owner_of(ledger, run)
    assert direct["parameters"] == {
        "deployed_run": run, "home": str(group.home), "owner": owner, "run": "continue", "window": "8h",
    }  # fmt: skip
    (schedule,) = direct["schedules"]
    assert schedule["active"] and schedule["schedule"] == {
        "cron": "0 22 * * *", "timezone": "Europe/Berlin", "day_or": True,
    }  # fmt: skip
    again = group.yatt("deploy", str(SPEC), "--manual", "--name", "direct")
    assert again["run"] == run, "a redeployed name keeps its run"
    assert group.ask("/deployments/name/yatt/direct")["schedules"] == []


def plain(deployment: dict[str, Any]) -> dict[str, Any]:
    keys = (
        "entrypoint",
        "parameters",
        "tags",
        "work_pool_name",
        "pull_steps",
        "parameter_openapi_schema",
        "description",
        "job_variables",
    )
    schedules = [row["schedule"] for row in deployment["schedules"]]
    return {key: deployment[key] for key in keys} | {"schedules": schedules}
