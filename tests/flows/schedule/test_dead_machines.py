"""The automation for flow runs of dead machines: applied once, left paused; and it closes what sends no heartbeat."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from httpx import HTTPError
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events import Event, RelatedResource, Resource
from prefect.events.clients import PrefectEventsClient
from prefect.events.schemas.automations import EventTrigger
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Running
from prefect.types._datetime import now

from db.ledger import Ledger
from flows.prefect_io.prefect_server import (
    DATABASE_VARIABLE,
    HEARTBEAT_SECONDS,
    PREFECT_VARIABLE,
    group_server_service,
    sqlite_address,
    worker_service,
)
from flows.run.home import Home
from flows.schedule import dead_machines, reaper, suspension
from flows.schedule.dead_machines import HEARTBEAT, NAME, WATCHED, apply_automation, automation
from ops.group import keeper, maintenance, reaping
from ops.group.reaping import Automated
from tests.waiting import wait_until
from yatt_core.supervisor.runner import free_port


@pytest.fixture
def client(service_environment: Mapping[str, str]) -> Iterator[SyncPrefectClient]:
    with (
        temporary_settings({PREFECT_API_URL: service_environment["PREFECT_API_URL"]}),
        get_client(sync_client=True) as client,
    ):
        yield client
        for each in client.read_automations_by_name(NAME):
            client.delete_automation(each.id)


def test_it_is_applied_once_and_renewed(client: SyncPrefectClient) -> None:
    assert apply_automation() == "created"
    assert apply_automation() == "", "idempotent"
    (found,) = client.read_automations_by_name(NAME)
    assert isinstance(found.trigger, EventTrigger)
    assert found.enabled and found.trigger.within == timedelta(seconds=10 * HEARTBEAT_SECONDS)
    client.pause_automation(found.id)
    assert apply_automation() == "" and not client.read_automations_by_name(NAME)[0].enabled
    assert apply_automation(automation(timedelta(seconds=77))) == "replaced"
    (renewed,) = client.read_automations_by_name(NAME)
    assert isinstance(renewed.trigger, EventTrigger)
    assert renewed.id == found.id and renewed.trigger.within == timedelta(seconds=77)
    assert not renewed.enabled, "somebody has paused it"
    client.create_automation(automation())
    apply_automation()
    assert len(client.read_automations_by_name(NAME)) == 1


def test_the_keeper_applies_it_once_and_survives_a_server_that_refuses(
    client: SyncPrefectClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    automated = Automated()

    def refuse() -> str:
        raise HTTPError("no automations here")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(dead_machines, "apply_automation", refuse)
        automated.keep()
        automated.keep()
    assert caplog.text.count("is not applied: ") == 1 and "no automations here" in caplog.text
    automated.keep()
    assert len(client.read_automations_by_name(NAME)) == 1, "as soon as the server takes it"
    client.delete_automation(client.read_automations_by_name(NAME)[0].id)
    automated.keep()
    assert client.read_automations_by_name(NAME) == [], "once: somebody has deleted it"


def test_the_groups_keeper_applies_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rounds over a server need one; what they do there is replaced, but for the call that applies the automation."""
    home = Home(tmp_path / "runs")
    applied = threading.Event()
    handlers = dict[int, Any]()
    home.folder.mkdir()
    Ledger.open(home.ledger).close()

    def apply() -> str:
        applied.set()
        return "created"

    monkeypatch.setenv(PREFECT_VARIABLE, "http://127.0.0.1:9/api")
    monkeypatch.setattr(reaping, "use_server", lambda *_: None)
    monkeypatch.setattr(reaper, "reap", lambda *_: [])
    monkeypatch.setattr(suspension, "resume_windows", lambda *_: [])
    monkeypatch.setattr(maintenance, "Scheduled", lambda _: SimpleNamespace(keep=lambda: None))
    monkeypatch.setattr(dead_machines, "apply_automation", apply)
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(Home, "locate", lambda: home)
    monkeypatch.setattr(keeper.Keeper, "run", lambda _: applied.wait(15.0))
    try:
        assert keeper.main() == 0
    finally:
        handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert applied.is_set()


def test_heartbeats_are_on(tmp_path: Path) -> None:
    worker = worker_service(tmp_path, 1, 2, {})
    assert worker.environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == str(HEARTBEAT_SECONDS)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[None]:
    """The group's own kind of server, which evaluates triggers."""
    port = free_port()
    folder = tmp_path / "group"
    (folder / "prefect").mkdir(parents=True)
    service = group_server_service(folder, port, {})
    environment = os.environ | dict(service.environment) | {DATABASE_VARIABLE: sqlite_address(folder / "prefect")}
    with (
        (tmp_path / "server.log").open("wb") as log,
        subprocess.Popen(service.argv, env=environment, stdout=log, stderr=log) as process,
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}),
    ):
        with get_client(sync_client=True) as client:
            wait_until(lambda: client.api_healthcheck() is None, 120.0)
        yield
        process.terminate()


def begun(client: SyncPrefectClient, name: str) -> FlowRun:
    """Returns a running flow run of a flow of this name."""
    return client.create_flow_run(Flow(fn=lambda: None, name=name), state=Running())


async def beat(*flow_runs: tuple[str, FlowRun]) -> None:
    """Sends a heartbeat of each flow run, as Prefect's engine does."""
    async with PrefectEventsClient() as events:
        for name, flow_run in flow_runs:
            flow = {"prefect.resource.role": "flow", "prefect.resource.name": name}
            await events.emit(
                Event(
                    occurred=now("UTC"),
                    event=HEARTBEAT,
                    resource=Resource({"prefect.resource.id": f"prefect.flow-run.{flow_run.id}"}),
                    related=[RelatedResource(flow | {"prefect.resource.id": f"prefect.flow.{flow_run.flow_id}"})],
                )
            )


@pytest.mark.verify
def test_a_flow_run_without_heartbeats_is_closed(server: None) -> None:
    """One driver is dead, one window has ended under a name of YATT's, and a flow is somebody else's."""
    import asyncio

    assert apply_automation(automation(timedelta(seconds=10))) == "created"
    with get_client(sync_client=True) as client:
        dead = begun(client, "train")
        held = begun(client, WATCHED[0])
        other = begun(client, "theirs")
        asyncio.run(beat(("train", dead), (WATCHED[0], held), ("theirs", other)))
        client.set_flow_run_state(held.id, State(type=StateType.COMPLETED, name="Held"), force=True)
        wait_until(lambda: client.read_flow_run(dead.id).state_type == StateType.CRASHED, 120.0)
        state = client.read_flow_run(dead.id).state
        assert state is not None and "no heartbeat for 10 s" in (state.message or "")
        assert client.read_flow_run(held.id).state_name == "Held"
        assert client.read_flow_run(other.id).state_type == StateType.RUNNING
