"""The Prefect side of maintenance: the flow, its steps as tasks, and the deployment that the service group applies.

The deployment has one schedule, of `maintenance.yaml`; the group's worker starts its flow runs. A flow run fails if a step
did not succeed, with what the steps said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prefect import flow, task
from prefect.client.schemas.objects import State
from prefect.flows import Flow
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from db.core.errors import LedgerError
from flows.maintenance.runner import Step, maintain
from flows.maintenance.settings import NAME as SETTINGS
from flows.maintenance.settings import MaintenanceSettings
from flows.run.home import Home
from flows.schedule.deployments import create
from flows.schedule.flow_names import MAINTENANCE_FLOW
from flows.schedule.schedule_times import cron_schedule
from yatt_core.errors import YattError
from yatt_core.logs import redact

DEPLOYMENT = "daily"
Ending = State[None]
MaintenanceFlow = Flow[..., Ending]


def maintenance_flow(function: Callable[..., Ending]) -> MaintenanceFlow:
    """Turns a function that supplies the external services into the flow of maintenance."""
    summary = (function.__doc__ or "").partition("\n")[0]
    return flow(name=MAINTENANCE_FLOW, description=summary, retries=0, persist_result=False)(function)


def maintain_in_flow(home: Home, steps: Mapping[str, Step]) -> Ending:
    """Runs each step as a task of the current flow run; returns the flow run's final state."""
    named = f"flow run {flow_run.get_name()}"
    try:
        result = maintain(home, {name: _as_task(name, step) for name, step in steps.items()}, named)
    except (YattError, LedgerError) as error:
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
    """Creates or updates the deployment on the configured server.

    Raises `ConfigurationError` for a wrong schedule, `InfrastructureError` if the server does not answer.
    """
    origin = str(home.folder / SETTINGS)
    schedule = cron_schedule(settings.cron, settings.timezone, f"{origin}: cron", f"{origin}: timezone")
    create(
        name=DEPLOYMENT,
        home=home.folder,
        schedules=[schedule],
        parameters={"home": str(home.folder)},
        flow=function,
        alone=True,
    )
