"""A deployment: which run the windows of a schedule drive; as data, on Prefect's server, and in a prefect.yaml.

Consumes a run's name and a schedule; produces the deployment on the server that Prefect's client is set to, or its entry in a
prefect.yaml, which `prefect deploy` makes the same deployment of. Its entrypoint is a module's path, so the code is what the
worker has installed, and its parameters hold no secret: addresses of databases come from the worker's environment. A digest says
whose ledger is meant, so a window refuses that of a worker with another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.utilities.callables import parameter_schema
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from flows.prefect_io.prefect_client import AWAY, server_needed
from flows.prefect_io.prefect_server import WORK_POOL
from flows.schedule.schedule_times import Schedule
from flows.schedule.scheduled import WindowFlow
from yatt_core import durable
from yatt_core.errors import ConfigurationError, InfrastructureError

DEPLOYMENTS = "deployments"
STEP = "prefect.deployments.steps.set_working_directory"
TAG = "yatt"
JOB = {"env": {"PREFECT_LOGGING_LEVEL": "WARNING"}}
"""Of the process of a window: two lines a task run would fill the server's database."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The windows of `run`. owner: which run of that name is meant (`flows.run.owner`). schedule: None where only people start them.

    longest: None up to the start that follows.
    """

    name: str
    run: str
    owner: str
    home: Path
    schedule: Schedule | None
    longest: timedelta | None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Those of the flow `ops.scheduled.window`."""
        seconds = None if self.longest is None else self.longest.total_seconds()
        return {"run": self.run, "home": str(self.home), "owner": self.owner, "for_seconds": seconds}

    @property
    def pull_steps(self) -> list[dict[str, Any]]:
        """What the process does before it imports the flow: it works in the home folder."""
        return [{STEP: {"directory": str(self.home)}}]


def entrypoint(flow: WindowFlow) -> str:
    """The path of the module that a flow is in, and its name there."""
    return f"{flow.fn.__module__}.{flow.fn.__name__}"


@contextmanager
def _answering(doing: str) -> Iterator[SyncPrefectClient]:
    """A client of the server that the environment names. Raises `InfrastructureError` where it does not answer."""
    try:
        with get_client(sync_client=True) as client:
            yield client
    except AWAY as error:
        raise InfrastructureError(f"{doing}: {server_needed(error)}") from error


def deployed(name: str, flow: WindowFlow) -> DeploymentResponse | None:
    """The deployment of this name as the server has it. Raises `InfrastructureError`."""
    with _answering(f"looking for deployment {name}") as client:
        try:
            return client.read_deployment_by_name(f"{flow.name}/{name}")
        except ObjectNotFound:
            return None


def apply(deployment: Deployment, flow: WindowFlow) -> str:
    """Makes the deployment, or changes the one of its name; returns its id. Raises `InfrastructureError`.

    Flow runs that were scheduled by an older schedule and have not begun are replaced by those of the new one.
    """
    schedules = [] if deployment.schedule is None else [DeploymentScheduleCreate(schedule=deployment.schedule)]
    with _answering(f"deploying {deployment.name}") as client:
        with suppress(ObjectAlreadyExists):  # one that `yatt up` made, or that somebody gave settings of their own
            client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process"))
        return str(
            client.create_deployment(
                flow_id=client.create_flow_from_name(flow.name),
                name=deployment.name,
                schedules=schedules,
                parameters=dict(deployment.parameters),
                description=flow.description,
                work_pool_name=WORK_POOL,
                job_variables=JOB,
                tags=[TAG],
                entrypoint=entrypoint(flow),
                pull_steps=deployment.pull_steps,
                parameter_openapi_schema=parameter_schema(flow).model_dump(exclude_unset=True),
                enforce_parameter_schema=True,
            )
        )


def entry(deployment: Deployment, flow: WindowFlow) -> dict[str, Any]:
    """The deployment as it stands in the list `deployments` of a prefect.yaml."""
    return {
        "name": deployment.name,
        "entrypoint": entrypoint(flow),
        "tags": [TAG],
        "parameters": dict(deployment.parameters),
        "schedules": [] if deployment.schedule is None else [_schedule_entry(deployment.schedule)],
        "work_pool": {"name": WORK_POOL, "job_variables": JOB},
        "pull": deployment.pull_steps,
    }


def _schedule_entry(schedule: Schedule) -> dict[str, Any]:
    if isinstance(schedule, CronSchedule):
        return {"cron": schedule.cron, "timezone": schedule.timezone}
    anchor = schedule.anchor_date.isoformat()
    return {"interval": schedule.interval.total_seconds(), "anchor_date": anchor, "timezone": schedule.timezone}


def read_project(path: Path) -> dict[str, Any]:
    """A prefect.yaml as it is, where it can be written; without deployments where there is none yet.

    Raises `ConfigurationError`, naming file and key.
    """
    folder = path.parent
    if not folder.is_dir():
        raise ConfigurationError(f"{path}: there is no folder {folder}; make it, or name a file elsewhere")
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
        raise ConfigurationError(f"{path}: a mapping of keys to values is needed, as `prefect init` writes it")
    if document.get(DEPLOYMENTS) is None:
        document[DEPLOYMENTS] = []
    entries = document[DEPLOYMENTS]
    if not isinstance(entries, list) or not all(isinstance(item, dict) and "name" in item for item in entries):
        raise ConfigurationError(f"{path}: {DEPLOYMENTS}: a list of mappings is needed, each with a name")
    return document


def entry_named(project: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The deployment of this name in a prefect.yaml; None where there is none."""
    return next((item for item in project[DEPLOYMENTS] if item["name"] == name), None)


def write_project(path: Path, project: dict[str, Any], item: Mapping[str, Any]) -> None:
    """The prefect.yaml with this entry in the place of the one of its name; all else stays, comments included."""
    entries = project[DEPLOYMENTS]
    place = next((place for place, other in enumerate(entries) if other["name"] == item["name"]), len(entries))
    entries[place : place + 1] = [dict(item)]
    text = StringIO()
    YAML().dump(project, text)
    durable.write_file(path, text.getvalue().encode())
