"""The flow run that a worker starts to check a deployed pipeline: it polls the pipeline, and drives what there is to drive.

Consumes the deployment's parameters and a function that drives a run of a pipeline. Produces the flow run's final state, which
says what was found. It may be killed at any line; the next check goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from prefect import flow
from prefect.context import FlowRunContext
from prefect.flows import Flow
from prefect.states import Completed, Failed

from db.core.errors import LeaseHeld, LedgerError
from db.ledger import Ledger
from db.write.pipelines import FAILED
from flows.pipelines.conditions import ANCHOR
from flows.pipelines.flow import run_as_task
from flows.pipelines.polling import poll_pipeline
from flows.pipelines.runner import RunStep
from flows.prefect_io.flow_run_names import rename_flow_run
from flows.run.home import Home
from flows.schedule.deployments import create
from flows.schedule.flow_names import PIPELINE_FLOW
from flows.schedule.schedule_times import Schedule, interval_schedule
from flows.schedule.scheduled import HELD
from flows.schedule.window_start import Ending
from yatt_core.errors import YattError
from yatt_core.logs import redact

Drive = Callable[[Ledger, str, RunStep], str]
"""Drives a run of a pipeline; returns the state in which it ends."""
CheckFlow = Flow[..., Ending]


def check_flow(function: Callable[..., Ending]) -> CheckFlow:
    """Turns a function that supplies what drives pipelines into the flow of a check."""
    summary = (function.__doc__ or "").partition("\n")[0]
    named = "check of {pipeline}"
    return flow(name=PIPELINE_FLOW, description=summary, flow_run_name=named, retries=0, persist_result=False)(function)


def deploy_checks(home: Home, pipeline: str, schedules: Sequence[Schedule], every: timedelta, check: CheckFlow) -> str:
    """Creates or updates the deployment of a pipeline on Prefect's server; returns its name.

    Checks take place at an interval, and when one of the pipeline's `schedules` says so. Raises `InfrastructureError`.
    """
    steady = interval_schedule(every, ANCHOR, "UTC", "--every")
    parameters = {"pipeline": pipeline, "home": str(home.folder)}
    create(
        name=pipeline, home=home.folder, schedules=[steady, *schedules], parameters=parameters, flow=check, alone=True
    )
    return f"{PIPELINE_FLOW}/{pipeline}"


def check_pipeline(home: Home, pipeline: str, drive: Drive) -> Ending:
    """Polls a deployed pipeline and drives what there is to drive; returns the flow run's final state."""
    try:
        with Ledger.open(home.ledger, migrate=False) as ledger:
            found = poll_pipeline(ledger, pipeline)
            if found.pipeline is None:
                return Completed(message=redact(found.said))
            context = FlowRunContext.get()
            assert context is not None and context.flow_run is not None, "a check is a flow run"
            rename_flow_run(context.flow_run.id, found.pipeline)
            try:
                state = drive(ledger, found.pipeline, run_as_task)
            except LeaseHeld as held:
                return Completed(name=HELD, message=redact(str(held)))
            reason = ledger.pipelines.find(found.pipeline).reason
    except (YattError, LedgerError) as error:
        return Failed(message=redact(str(error)))
    said = redact(f"{found.said}; pipeline {found.pipeline} is {state}{f' ({reason})' if reason else ''}")
    return Failed(message=said) if state == FAILED else Completed(message=said)
