"""The form of a deployment on a real Prefect server: what it shows, what it refuses, and what its values change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Scheduled

from flows.prefect_io.prefect_server import SharedServer
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.owner import owner_of
from flows.schedule.deployments import Deployment, apply, begin
from flows.schedule.schedule_times import cron_schedule, upcoming
from flows.schedule.window_record import driven_run, recorded_windows
from ops.queries.deployments import deployments
from ops.scheduled import window
from tests.flows.tools import SECONDS, Driver
from yatt_core.errors import ConfigurationError

RATE = {"trainer.optimizer.learning_rate": 3e-4}
FORM = ("run", "overrides", "iterations", "window")


@pytest.fixture
def client(service_environment: Mapping[str, str]) -> Iterator[SyncPrefectClient]:
    with (
        temporary_settings({PREFECT_API_URL: service_environment["PREFECT_API_URL"]}),
        get_client(sync_client=True) as client,
    ):
        yield client


def deployed(driver: Driver, run: str, new_runs: bool = False) -> str:
    with driver.ledger() as ledger:
        owner = owner_of(ledger, run)
    return apply(Deployment(run, run, owner, driver.folder, None, "8h", new_runs), window)


def driven(driver: Driver, client: SyncPrefectClient, deployment: str, values: dict[str, Any]) -> FlowRun:
    """Creates a flow run as the form does, runs it as a worker does, and returns it after its end."""
    key = client.create_flow_run_from_deployment(deployment, parameters=values).id
    process = driver.start("-", "--flow-run", str(key))
    process.wait(SECONDS)
    return client.read_flow_run(key)


def test_the_form_and_an_overridden_learning_rate(driver: Driver, client: SyncPrefectClient) -> None:
    run = driver.create("virtual.yaml", "name=form")
    deployment = deployed(driver, run)
    stored = client.read_deployment(deployment)
    fields: Mapping[str, Any] = stored.parameter_openapi_schema["properties"]
    assert [name for name in fields if fields[name]["position"] < len(FORM)] == list(FORM)
    assert all(field["description"] for field in fields.values())
    assert {name: fields[name]["default"] for name in FORM} == {
        "run": "continue", "overrides": {}, "iterations": None, "window": None,
    }  # fmt: skip
    assert (fields["run"]["enum"], fields["overrides"]["type"]) == (["continue", "new"], "object")
    assert fields["iterations"]["anyOf"][0] == {"type": "integer", "exclusiveMinimum": 0}
    assert (stored.parameters["run"], stored.parameters["window"]) == ("continue", "8h")
    for bad in ({"run": "fork"}, {"iterations": 0}, {"window": "8 hours"}, {"overrides": "a=1"}):
        with pytest.raises(PrefectHTTPStatusError) as refused:
            client.create_flow_run_from_deployment(deployment, parameters=bad)
        assert refused.value.response.status_code in (409, 422), bad

    flow_run = driven(driver, client, deployment, {"overrides": RATE, "iterations": 1})
    assert flow_run.state_name == "Completed", flow_run.state
    with driver.ledger() as ledger:
        assert ledger.runs.revision(run).reason == "--set trainer.optimizer.learning_rate=0.0003 --set iterations=1"
        spec = current_spec(ledger, run)
        row = ledger.runs.find(run)
        (record,) = recorded_windows(ledger, run).values()
    assert spec.trainer.optimizer.learning_rate == 3e-4
    assert (row.state, row.iteration, flow_run.name) == ("completed", 1, run)
    assert record.parameters == {"overrides": RATE, "iterations": 1, "window": "8h"}


@pytest.mark.verify
def test_each_window_starts_a_new_run_unless_it_is_told_to_continue(driver: Driver, client: SyncPrefectClient) -> None:
    run = driver.create("virtual.yaml", "name=fresh", "iterations=1")
    deployment = deployed(driver, run, new_runs=True)
    first = driven(driver, client, deployment, {"overrides": RATE})
    second = driven(driver, client, deployment, {"iterations": 2})
    assert [(each.state_name, each.name) for each in (first, second)] == [
        ("Completed", "fresh-2"), ("Completed", "fresh-3"),
    ]  # fmt: skip
    with driver.ledger() as ledger:
        rates = [current_spec(ledger, made).trainer.optimizer.learning_rate for made in (run, "fresh-2", "fresh-3")]
        assert rates == [rates[0], 3e-4, rates[0]] and rates[0] != 3e-4
        assert [ledger.runs.find(made).iteration for made in (run, "fresh-2", "fresh-3")] == [-1, 1, 2]
        assert driven_run(ledger, run, str(first.id)) == "fresh-2"
        assert list(recorded_windows(ledger, "fresh-2")) == [str(first.id)]
        assert ledger.runs.revision("fresh-2").revision == 1, "its first spec has the values"
    continued = driven(driver, client, deployment, {"run": "continue"})
    with driver.ledger() as ledger:
        assert continued.state_name == "Completed" and ledger.runs.find(run).iteration == 1
        assert len(ledger.runs.list()) == 3


def test_a_window_is_begun_by_name_without_the_settings_of_a_shell(driver: Driver, client: SyncPrefectClient) -> None:
    run = driver.create("virtual.yaml", "name=begun")
    deployed(driver, run)
    name = begin(run, window, {"iterations": 2, "window": "1h"})
    (flow_run,) = [each for each in client.read_flow_runs() if each.name == name]
    assert (flow_run.parameters["iterations"], flow_run.parameters["window"]) == (2, "1h")
    assert flow_run.parameters["deployed_run"] == run
    client.delete_flow_run(flow_run.id)
    with pytest.raises(ConfigurationError, match=rf"there is no deployment 'begn' .*{run}"):
        begin("begn", window, {})
    with pytest.raises(ConfigurationError, match="Prefect refuses the parameters"):
        begin(run, window, {"iterations": 0})


def test_deployments_are_listed_with_their_next_windows(
    driver: Driver, client: SyncPrefectClient, service_environment: Mapping[str, str]
) -> None:
    run = driver.create("virtual.yaml", "name=listed")
    nightly = cron_schedule("0 22 * * *", "Europe/Berlin", "--cron", "--timezone")
    with driver.ledger() as ledger:
        owner = owner_of(ledger, run)
    deployment = apply(Deployment("nightly", run, owner, driver.folder, nightly, "8h"), window)
    address = service_environment["PREFECT_API_URL"].removesuffix("/api")
    found = deployments(Home(driver.folder), SharedServer(address, "the server"))
    assert found.trouble == ""
    (one,) = [each for each in found.deployments if each.name == "nightly"]
    assert (one.run, one.longest, one.new_runs, one.paused) == (run, "8h", False, False)
    assert one.schedules == ("0 22 * * * (Europe/Berlin)",)
    begins = upcoming(nightly, datetime.now(UTC), 3)
    client.create_flow_run_from_deployment(deployment, state=Scheduled(scheduled_time=begins[1]))
    found = deployments(Home(driver.folder), SharedServer(address, "the server"))
    (one,) = [each for each in found.deployments if each.name == "nightly"]
    assert round(1000 * begins[1].timestamp()) in one.next
    client.delete_deployment(deployment)
    assert deployments(Home(driver.folder / "other"), SharedServer(address, "the server")).deployments == ()
    away = deployments(Home(driver.folder), SharedServer("http://me:secret@127.0.0.1:9", "nobody"))
    assert "does not answer" in away.trouble and "secret" not in away.trouble
    assert "yatt up" in deployments(Home(driver.folder), None).trouble
