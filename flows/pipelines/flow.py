"""A pipeline as one Prefect flow with a task for each step, if there is a Prefect server that runs share.

Consumes a function that drives a pipeline, and one that finds the server. The record is the ledger's: Prefect shows it. Where
no server is shared, the pipeline is driven without Prefect; its runs have servers of their own anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from flows.driver.services import FindServer
from flows.pipelines.runner import RunStep, Task, run_directly
from flows.prefect_io.prefect_server import use_server
from flows.schedule.flow_names import PIPELINE_FLOW
from yatt_core.errors import InfrastructureError

log = logging.getLogger("yatt_core.flow")


def drive_pipeline(run: Callable[[RunStep], str], pipeline: str, folder: Path, find_server: FindServer) -> str:
    """Drives a pipeline; returns the state that it is in.

    folder: folder of the pipeline, for Prefect's own files.

    Raises `InfrastructureError` if the server is lost, which `yatt pipeline resume` makes good.
    """
    server = find_server(log.info)
    if server is None:
        return run(run_directly)
    folder.mkdir(parents=True, exist_ok=True)
    use_server(folder, server.address, server.password)
    return _in_a_flow(run, pipeline)


def _in_a_flow(run: Callable[[RunStep], str], pipeline: str) -> str:
    # Imported late: prefect reads its settings on first import.
    from prefect import flow

    from flows.prefect_io.prefect_client import AWAY, is_unreachable, server_needed

    @flow(name=PIPELINE_FLOW, flow_run_name=pipeline, retries=0, persist_result=False, validate_parameters=False)
    def drive() -> str:
        return run(run_as_task)

    try:
        return drive()
    except (*AWAY, RuntimeError) as error:
        if not is_unreachable(error):
            raise
        raise InfrastructureError(server_needed(error)) from error


def run_as_task(name: str, work: Task) -> None:
    """Does a step as a Prefect task of the flow that calls it."""
    from prefect import task

    @task(name="job", task_run_name=name, retries=0, persist_result=False)
    def job() -> None:
        work()

    job()
