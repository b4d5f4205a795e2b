"""What a session shows in Prefect is only for display: an unreachable server never ends a run."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings

import flows.train
from db.core.errors import LedgerUnavailable
from flows.driver.run_status import SessionOutcome
from flows.driver.session import DriverSession
from flows.phases import flow_run_report as module
from flows.phases.flow_run_report import flow_run_report
from tests.flows.simulated import BranchRunActors, Simulation
from yatt_core.errors import AwayError
from yatt_core.supervisor.runner import free_port


def toy_session() -> tuple[Any, list[str]]:
    said = list[str]()
    metrics = SimpleNamespace(latest=lambda run: {}, newest=lambda run, key, count: [])
    observer = SimpleNamespace(warned=said.append, stage=said.append, settled=said.append)
    ledger = SimpleNamespace(metrics=metrics)
    spec = SimpleNamespace(iterations=40)
    context = SimpleNamespace(run="toy-1", spec=spec, ledger=ledger, observer=observer, branch=0, last_commit=-1)
    return SimpleNamespace(context=context, outages=SimpleNamespace()), said


def committed(iteration: int) -> Any:
    return SimpleNamespace(iteration=iteration)


def test_an_unreachable_server_ends_no_run_and_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UPDATE_SECONDS", 0.0)
    session, said = toy_session()
    address = f"http://127.0.0.1:{free_port()}/api"
    began = time.monotonic()
    with temporary_settings({PREFECT_API_URL: address}), flow_run_report(session) as report:
        for iteration in range(40):
            report.before(committed(iteration))
            report.after(committed(iteration + 1))
        report.conclude(SessionOutcome("toy-1", "completed", 40, "target reached", 0))
    assert len(said) == 1 and address in said[0]
    assert time.monotonic() - began < 10.0, "requests are not repeated"


def test_a_block_that_prefect_did_not_hear_of_begins_as_soon_as_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = toy_session()
    opened = list[str]()
    tagged = list[list[str]]()
    prefect = SimpleNamespace(
        update_flow_run=lambda _id, tags: tagged.append(tags),
        create_artifact=lambda _: None,
        create_logs=lambda _: None,
    )
    client = SimpleNamespace(answers=False, ask=lambda request: request(prefect) if client.answers else None)
    children = SimpleNamespace(current=None, close=lambda *_: None)

    def begin(name: str, _parameters: object) -> None:
        opened.append(name)
        children.current = SimpleNamespace(id=uuid4()) if client.answers else None

    children.open = begin
    monkeypatch.setattr(module, "ChildFlowRuns", lambda *_: children)
    flow_run = SimpleNamespace(id=uuid4(), tags=["yatt"])
    monkeypatch.setattr(module.FlowRunContext, "get", lambda: SimpleNamespace(flow_run=flow_run))
    client.answers = True
    report = module.FlowRunReport(client, session)
    assert tagged == [["yatt", "run:toy-1"]], "a deployment's flow run is found by its run"
    client.answers = False
    for iteration in range(6):
        client.answers = iteration >= 3
        report.before(committed(iteration))
        report.after(committed(iteration + 1))
    report.end()
    assert opened == ["iterations 1 to 10", "iterations 4 to 10"]


def test_a_ledger_that_is_away_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UPDATE_SECONDS", 0.0)
    session, _ = toy_session()
    logged = list[int]()
    trouble = [LedgerUnavailable("away")]

    def newest(run: str, key: str, count: int) -> list[tuple[int, float]]:
        if trouble:
            raise trouble[0]
        return []

    def latest(run: str) -> dict[str, Any]:
        raise LedgerUnavailable("away")

    def line(points: Any, iteration: int, target: int) -> str:
        logged.append(iteration)
        return ""

    session.context.ledger.metrics = SimpleNamespace(latest=latest, newest=newest)
    monkeypatch.setattr(module, "line", line)
    address = f"http://127.0.0.1:{free_port()}/api"
    with temporary_settings({PREFECT_API_URL: address}), flow_run_report(session) as report:
        for iteration in range(3):
            report.before(committed(iteration))
            report.after(committed(iteration + 1))
        assert logged == []
        trouble.clear()
        report.after(committed(4))
        assert logged == [1, 2, 3, 4], "the lines follow"
        trouble.append(LedgerUnavailable("away"))
        report.before(committed(39))  # closes the block
        report.conclude(SessionOutcome("toy-1", "completed", 40, "target reached", 0))


@pytest.mark.parametrize("error", [ConnectionError("of the run's own"), KeyboardInterrupt()])
def test_an_error_of_the_run_passes_through(error: BaseException) -> None:
    session, _ = toy_session()

    def away(*_: object) -> list[Any]:
        raise LedgerUnavailable("away")

    session.context.ledger.metrics.newest = away
    address = f"http://127.0.0.1:{free_port()}/api"
    with (
        temporary_settings({PREFECT_API_URL: address}),
        pytest.raises(type(error)),
        flow_run_report(session) as report,
    ):
        report.before(committed(1))
        report._done = 2
        raise error


def test_a_run_that_waits_has_a_waiting_flow_run_until_what_it_waits_for_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation.of(tmp_path, "iterations=2")
    flow_run = SimpleNamespace(id=uuid4(), tags=[f"run:{simulation.run}"])
    clock = simulation.cluster.clock
    shown = list[tuple[float, State[Any]]]()
    away = list[float]()

    def show(shown_for: UUID, state: State[Any], force: bool) -> None:
        assert shown_for == flow_run.id and force, "Prefect would keep the state of a flow run that is running"
        shown.append((clock.monotonic(), state))

    prefect = SimpleNamespace(set_flow_run_state=show, create_artifact=lambda _: None, create_logs=lambda _: None)
    client: Any = SimpleNamespace(answers=True, ask=lambda request: request(prefect))
    children = SimpleNamespace(current=None, open=lambda *_: None, close=lambda *_: None)
    drive = flows.train.drive
    collect = BranchRunActors.collect

    def drive_with_report(session: DriverSession, _: object) -> SessionOutcome:
        report = module.FlowRunReport(client, session)
        try:
            return drive(session, report)
        finally:
            report.end()

    def collecting(actors: BranchRunActors, *given: Any) -> Any:
        away.append(clock.monotonic())
        if away[-1] < away[0] + 60.0:
            raise AwayError("judge 'helpful' at https://judge.example/v1 is away: it does not answer")
        return collect(actors, *given)

    monkeypatch.setattr(module, "ChildFlowRuns", lambda *_: children)
    monkeypatch.setattr(module.FlowRunContext, "get", lambda: SimpleNamespace(flow_run=flow_run))
    monkeypatch.setattr(flows.train, "drive", drive_with_report)
    monkeypatch.setattr(BranchRunActors, "collect", collecting)
    ended = simulation.drive()
    assert ended is not None and (ended.state, ended.iteration) == ("completed", 2)
    (began, waiting), (over, running) = shown
    assert (waiting.type, waiting.name) == (StateType.RUNNING, "Waiting")
    assert str(waiting.message).startswith("waiting for judge 'helpful' at https://judge.example/v1 since ")
    assert (running.type, running.name, running.message) == (StateType.RUNNING, "Running", None)
    assert began == away[0] and over > away[0] + 60.0
