"""Deployments, which determine the run that the windows of a schedule drive: as data, on a server, in a prefect.yaml.

Consumes a run's name and a schedule. Produces the deployment on the configured Prefect server, or an entry in a
prefect.yaml, from which `prefect deploy` creates the same deployment. The entrypoint is a module path, so a worker
runs its installed code. The parameters hold no secrets: database addresses come from the worker's environment. A
digest identifies the ledger, so that a window fails on a worker that uses another ledger.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from io import StringIO
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule, RRuleSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.flows import Flow
from prefect.utilities.callables import parameter_schema
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from flows.prefect_io.prefect_client import AWAY, server_needed
from flows.prefect_io.prefect_server import WORK_POOL
from flows.schedule.parameters import CONTINUE, NEW
from flows.schedule.reaper import DEPLOYED
from flows.schedule.schedule_times import Schedule
from flows.schedule.scheduled import WindowFlow
from flows.schedule.window_start import Ending
from yatt_core import durable
from yatt_core.errors import ConfigurationError, InfrastructureError

DEPLOYMENTS = "deployments"
ALONE = ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
STEP = "prefect.deployments.steps.set_working_directory"
TAG = "yatt"
JOB = {"env": {"PREFECT_LOGGING_LEVEL": "WARNING"}}
"""Settings of a window's process. At the default log level, the two lines logged for each task run would gradually fill
the server's database."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The windows of `run`.

    owner: a digest of the run, in case another ledger has a run of that name (`flows.run.owner`).
    schedule: None if windows are only started manually.
    window: the maximum duration of a window, such as 8h; if None, it lasts until the next start.
    new_runs: whether each window starts a new run, unless its parameters say otherwise.
    """

    name: str
    run: str
    owner: str
    home: Path
    schedule: Schedule | None
    window: str | None
    new_runs: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters of the flow `ops.scheduled.window`: which run is meant, and the defaults of its form."""
        meant = {DEPLOYED: self.run, "home": str(self.home), "owner": self.owner}
        return meant | {"run": NEW if self.new_runs else CONTINUE, "window": self.window}


def entrypoint(flow: WindowFlow) -> str:
    """Returns a flow's module path and its name in the module."""
    return f"{flow.fn.__module__}.{flow.fn.__name__}"


@contextmanager
def _answering(doing: str) -> Iterator[SyncPrefectClient]:
    """Yields a client of the configured Prefect server. Raises `InfrastructureError` if the server does not answer."""
    try:
        with get_client(sync_client=True) as client:
            yield client
    except AWAY as error:
        raise InfrastructureError(f"{doing}: {server_needed(error)}") from error


def deployed(name: str, flow: WindowFlow) -> DeploymentResponse | None:
    """Returns the server's deployment of this name; None if there is none. Raises `InfrastructureError`."""
    with _answering(f"looking for deployment {name}") as client:
        try:
            return client.read_deployment_by_name(f"{flow.name}/{name}")
        except ObjectNotFound:
            return None


def begin(name: str, flow: WindowFlow, parameters: Mapping[str, Any]) -> str:
    """Has a worker begin a window of a deployment at once; returns the name of its flow run.

    parameters: those that differ from the deployment's.

    Raises `ConfigurationError` for a name without a deployment, and for parameters that Prefect refuses; `InfrastructureError`.
    """
    found = deployed(name, flow)
    if found is None:
        known = ", ".join(_names(flow)) or "none yet; `yatt deploy` makes one"
        raise ConfigurationError(f"there is no deployment {name!r} on the Prefect server; deployments: {known}")
    with _answering(f"beginning a window of {name}") as client:
        try:
            return client.create_flow_run_from_deployment(found.id, parameters=dict(parameters)).name
        except PrefectHTTPStatusError as error:
            if error.response.status_code not in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY):
                raise
            raise ConfigurationError(f"deployment {name}: Prefect refuses the parameters: {_detail(error)}") from error


def _names(flow: WindowFlow) -> list[str]:
    """Returns the names of the server's deployments of a flow, sorted."""
    with _answering("listing deployments") as client:
        named = FlowFilter(name=FlowFilterName(any_=[flow.name]))
        return sorted(each.name for each in client.read_deployments(flow_filter=named))


def _detail(error: PrefectHTTPStatusError) -> str:
    """Returns what the server says about a refusal."""
    try:
        return str(error.response.json().get("detail", error.response.text))
    except ValueError:
        return error.response.text[:200]


def apply(deployment: Deployment, flow: WindowFlow) -> str:
    """Creates the deployment, or updates the one of the same name; returns its id. Raises `InfrastructureError`.

    Flow runs of an older schedule that have not started are replaced by those of the new schedule.
    """
    schedules = [] if deployment.schedule is None else [deployment.schedule]
    return create(
        name=deployment.name, home=deployment.home, schedules=schedules, parameters=deployment.parameters, flow=flow
    )


def create(
    name: str,
    home: Path,
    schedules: Sequence[Schedule],
    parameters: Mapping[str, Any],
    flow: Flow[..., Ending],
    alone: bool = False,
) -> str:
    """Creates or updates a deployment of a flow with some schedules; returns its id. Raises `InfrastructureError`.

    alone: whether a flow run that is due while another one of the deployment goes on is cancelled before it begins.
    """
    limit: dict[str, Any] = {"concurrency_limit": 1, "concurrency_options": ALONE} if alone else {}
    with _answering(f"deploying {name}") as client:
        with suppress(ObjectAlreadyExists):  # made by `yatt up`, or configured by the user
            client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process"))
        return str(
            client.create_deployment(
                flow_id=client.create_flow_from_name(flow.name),
                name=name,
                schedules=[DeploymentScheduleCreate(schedule=schedule) for schedule in schedules],
                parameters=dict(parameters),
                description=flow.description,
                work_pool_name=WORK_POOL,
                job_variables=JOB,
                tags=[TAG],
                entrypoint=entrypoint(flow),
                pull_steps=_pull_steps(home),
                parameter_openapi_schema=parameter_schema(flow).model_dump(exclude_unset=True),
                enforce_parameter_schema=True,
                **limit,
            )
        )


def _pull_steps(home: Path) -> list[dict[str, Any]]:
    """Returns the steps before the flow is imported: change to the home folder."""
    return [{STEP: {"directory": str(home)}}]


def entry(deployment: Deployment, flow: WindowFlow) -> dict[str, Any]:
    """Returns the deployment as an entry of the list `deployments` in a prefect.yaml."""
    return {
        "name": deployment.name,
        "entrypoint": entrypoint(flow),
        "tags": [TAG],
        "parameters": dict(deployment.parameters),
        "schedules": [] if deployment.schedule is None else [_schedule_entry(deployment.schedule)],
        "work_pool": {"name": WORK_POOL, "job_variables": JOB},
        "pull": _pull_steps(deployment.home),
    }


def _schedule_entry(schedule: Schedule) -> dict[str, Any]:
    if isinstance(schedule, CronSchedule):
        return {"cron": schedule.cron, "timezone": schedule.timezone}
    if isinstance(schedule, RRuleSchedule):
        return {"rrule": schedule.rrule, "timezone": schedule.timezone}
    anchor = schedule.anchor_date.isoformat()
    return {"interval": schedule.interval.total_seconds(), "anchor_date": anchor, "timezone": schedule.timezone}


def read_project(path: Path) -> dict[str, Any]:
    """Reads a prefect.yaml that is to be changed; returns an empty list of deployments if the file does not exist.

    Raises `ConfigurationError`, with file and key, if the file is invalid or its folder cannot be written.
    """
    folder = path.parent
    if not folder.is_dir():
        raise ConfigurationError(f"{path}: there is no folder {folder}; create it, or name a file elsewhere")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{path}: the folder {folder} is not writable; name a file elsewhere")
    try:
        document = YAML().load(path.read_text())
    except FileNotFoundError:
        return {DEPLOYMENTS: []}
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigurationError(f"{path}: cannot be read as YAML: {error}") from None
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: expected a mapping of keys to values, as `prefect init` writes it")
    if document.get(DEPLOYMENTS) is None:
        document[DEPLOYMENTS] = []
    entries = document[DEPLOYMENTS]
    if not isinstance(entries, list) or not all(isinstance(item, dict) and "name" in item for item in entries):
        raise ConfigurationError(f"{path}: {DEPLOYMENTS}: expected a list of mappings, each with a name")
    return document


def entry_named(project: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Returns the deployment of this name in a prefect.yaml; None if there is none."""
    return next((item for item in project[DEPLOYMENTS] if item["name"] == name), None)


def write_project(path: Path, project: dict[str, Any], item: Mapping[str, Any]) -> None:
    """Writes the prefect.yaml with this entry added or replaced, by name; keeps everything else, including comments."""
    entries = project[DEPLOYMENTS]
    place = next((place for place, other in enumerate(entries) if other["name"] == item["name"]), len(entries))
    entries[place : place + 1] = [dict(item)]
    text = StringIO()
    YAML().dump(project, text)
    durable.write_file(path, text.getvalue().encode())
