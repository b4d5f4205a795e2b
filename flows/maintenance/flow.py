"""The Prefect side of maintenance: the flow, its steps as tasks, and the deployment that the service group applies.

The deployment has one schedule, of `maintenance.yaml`; the group's worker starts its flow runs. A flow run fails if a step
did not succeed, with what the steps said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectAlreadyExists
from prefect.flows import Flow
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from prefect.utilities.callables import parameter_schema

from flows.maintenance.runner import Step, maintain
from flows.maintenance.settings import FLOW, MaintenanceSettings
from flows.maintenance.settings import NAME as SETTINGS
from flows.prefect_io.prefect_server import WORK_POOL
from flows.run.home import Home
from flows.schedule.deployments import JOB, STEP, TAG
from flows.schedule.schedule_times import cron_schedule
from yatt_core.errors import YattError
from yatt_core.logs import redact

DEPLOYMENT = "daily"
Ending = State[None]
MaintenanceFlow = Flow[..., Ending]


def maintenance_flow(function: Callable[..., Ending]) -> MaintenanceFlow:
    """Turns a function that supplies the external services into the flow of maintenance."""
    summary = (function.__doc__ or "").partition("\n")[0]
    return flow(name=FLOW, description=summary, retries=0, persist_result=False)(function)


def maintain_in_flow(home: Home, steps: Mapping[str, Step]) -> Ending:
    """Runs each step as a task of the current flow run; returns the flow run's final state."""
    named = f"flow run {flow_run.get_name()}"
    try:
        result = maintain(home, {name: _as_task(name, step) for name, step in steps.items()}, named)
    except YattError as error:
        return Failed(message=redact(str(error)))
    if not result.ok:
        return Failed(message=result.trouble)
    return Completed(message="; ".join(f"{step.name}: {step.said}" for step in result.steps))


def _as_task(name: str, step: Step) -> Step:
    run = task(name=name, persist_result=False)(step)

    def done() -> str:
        return str(run())

    return done


def apply(home: Home, settings: MaintenanceSettings, function: MaintenanceFlow) -> None:
    """Creates or updates the deployment on the configured server. Raises `ConfigurationError` for a wrong schedule."""
    origin = str(home.folder / SETTINGS)
    schedule = cron_schedule(settings.cron, settings.timezone, f"{origin}: cron", f"{origin}: timezone")
    with get_client(sync_client=True) as client:
        with suppress(ObjectAlreadyExists):  # the worker makes it, too
            client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process"))
        client.create_deployment(
            flow_id=client.create_flow_from_name(function.name),
            name=DEPLOYMENT,
            schedules=[DeploymentScheduleCreate(schedule=schedule)],
            parameters={"home": str(home.folder)},
            description=function.description,
            work_pool_name=WORK_POOL,
            job_variables=JOB,
            tags=[TAG],
            entrypoint=f"{function.fn.__module__}.{function.fn.__name__}",
            pull_steps=[{STEP: {"directory": str(home.folder)}}],
            parameter_openapi_schema=parameter_schema(function).model_dump(exclude_unset=True),
            enforce_parameter_schema=True,
        )
