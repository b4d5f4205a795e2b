"""Child flow runs: groups of task runs that Prefect's UI draws as one node, which a person can open.

Prefect's own way to make one, calling a flow from a flow, would put a signal handler in place of the driver's, wait a
second for its heartbeat thread, and end the caller while the server is away. Here the child is only recorded: the task
runs that follow belong to it, in the same process and thread. If Prefect does not answer, they belong to the parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

from prefect import Flow, Task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, TaskRunResult
from prefect.context import FlowRunContext
from prefect.states import Pending, Running

from flows.prefect_io.optional_client import OptionalClient
from flows.prefect_io.prefect_client import RUN_TAG


class ChildFlowRuns:
    """The child flow runs of the current flow run, one at a time and in a row.

    flow: names the children; it is not called.
    """

    def __init__(self, client: OptionalClient, flow: Flow[..., Any]) -> None:
        self._client = client
        self._flow = flow
        self._tracking: Task[..., Any] = Task(fn=flow.fn, name=flow.name)
        self._inside = ExitStack()
        self._last: UUID | None = None
        self.current: FlowRun | None = None
        """The open child; None if there is none, or Prefect did not answer."""

    def open(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Opens a child with the tag of the parameter `run`; task runs belong to it until it is closed."""
        parent = FlowRunContext.get()
        if parent is None or parent.flow_run is None:
            return
        flow_run_id = parent.flow_run.id
        self.current = child = self._client.ask(
            lambda client: self._create(client, flow_run_id, name, dict(parameters))
        )
        if child is not None:
            fresh: dict[str, Any] = {"task_run_dynamic_keys": {}, "run_results": {}}
            update = {"flow": self._flow, "flow_run": child, "parameters": dict(parameters), **fresh}
            self._inside.enter_context(parent.model_copy(update=update))

    def _create(self, client: SyncPrefectClient, parent: UUID, name: str, parameters: dict[str, Any]) -> FlowRun:
        # Prefect attaches a child to a task run of its parent; as the input of the next one, it makes the graph a chain.
        inputs: dict[str, Any] = {"wait_for": [TaskRunResult(id=self._last)]} if self._last is not None else {}
        tracking = client.create_task_run(
            self._tracking, parent, dynamic_key=str(uuid4()), name=name, state=Pending(), task_inputs=inputs
        )
        self._last = tracking.id
        child = client.create_flow_run(
            self._flow,
            name=name,
            parameters=parameters,
            tags=[f"{RUN_TAG}{parameters['run']}"],
            parent_task_run_id=tracking.id,
            state=Pending(),
        )
        client.set_flow_run_state(child.id, Running())
        return child

    def close(self, state: State[Any], name: str | None = None) -> None:
        """Closes the open child, if there is one, in a final state.

        name: its final name; None if it keeps its name.
        """
        child = self.current
        self.current = None
        self._inside.close()
        if child is not None:
            self._client.ask(lambda client: _end(client, child, state, name))


def _end(client: SyncPrefectClient, child: FlowRun, state: State[Any], name: str | None) -> None:
    if name is not None and name != child.name:
        client.update_flow_run(child.id, name=name)
    client.set_flow_run_state(child.id, state, force=True)
