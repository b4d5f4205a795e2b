"""What Prefect's UI shows of a session: blocks of iterations, a line in the log for each, tables, a progress bar, a report.

Consumes the metrics in the ledger. All of it is for display only: a Prefect server that is unreachable for a while, such
as during a restart, never ends a run, and a block that it did not hear of is left out. If the ledger cannot be read,
the log's lines follow with the next ones, and what needs its metrics is left out.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate, LogCreate
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TagsContext
from prefect.states import Completed, Crashed, Failed, Running

from db.core.errors import LedgerError
from flows.driver.context import RunContext
from flows.driver.run_status import SessionOutcome
from flows.driver.session import DriverSession
from flows.phases.iteration_blocks import COLUMNS, Block, block_of, line, table
from flows.prefect_io.child_flow_runs import ChildFlowRuns
from flows.prefect_io.optional_client import OptionalClient
from flows.prefect_io.prefect_client import RUN_TAG
from flows.run.control_state import ControlState
from yatt_core.logs import redact
from yatt_core.spent_time import PREFECT, spent

log = logging.getLogger("yatt_core.flow")
UPDATE_SECONDS = 5.0
LOGGER = "yatt"


@flow(name="iterations", retries=0)
def iterations(run: str, session: str, first: int, last: int) -> None:
    """Groups the task runs of a block of iterations.

    session: the flow run of the driver session.
    """


class FlowRunReport:
    """Reports a session to its flow run."""

    def __init__(self, client: OptionalClient, session: DriverSession) -> None:
        parent = FlowRunContext.get()
        flow_run = None if parent is None else parent.flow_run
        self._flow_run = None if flow_run is None else flow_run.id
        self._client = client
        self._session = session
        if flow_run is not None and (own := RUN_TAG + self._context.run) not in flow_run.tags:
            # A deployment starts a flow run before its run is known.
            client.ask(lambda client: client.update_flow_run(flow_run.id, tags=[*flow_run.tags, own]))
        self._children = ChildFlowRuns(client, iterations)
        self._block: Block | None = None
        # For each tag of a task run, Prefect's client asks the server for a concurrency slot, and fails if it is away.
        self._untagged = TagsContext(current_tags=set())
        self._untagged.__enter__()
        self._logged = self._done = -1
        self._told = time.monotonic()
        self._progress = self._artifact("progress", 0.0, "progress", f"Iterations of {self._context.run}")
        session.outages.tell = self.waiting

    @property
    def _context(self) -> RunContext:
        return self._session.context

    @spent(PREFECT, "report")
    def before(self, state: ControlState | None) -> None:
        """Opens the block of the next iteration, unless it is already open.

        state: the control state of the last commit; None if it must be recovered first.
        """
        context = self._context
        iteration = 1 + (context.last_commit if state is None else state.iteration)
        if self._block is not None and self._block.holds(context.branch, iteration) and not self._can_open():
            return
        self._close(Completed())
        self._block = block = block_of(context.branch, iteration, context.spec.iterations)
        self._logged = self._done = iteration - 1
        parameters = {"run": context.run, "session": str(self._flow_run), "first": block.first, "last": block.last}
        self._children.open(block.name, parameters)

    def _can_open(self) -> bool:
        """Returns True if Prefect did not hear of the current block, and answers by now: it then begins late."""
        return self._flow_run is not None and self._children.current is None and self._client.answers

    @spent(PREFECT, "report")
    def after(self, state: ControlState) -> None:
        """Reports the commit of an iteration, unless the previous report is too recent."""
        self._done = state.iteration
        if time.monotonic() - self._told < UPDATE_SECONDS:
            return
        self._told = time.monotonic()
        self._log()
        if (artifact := self._progress) is not None:
            percent = 100.0 * max(0, state.iteration) / self._context.spec.iterations
            self._client.ask(lambda client: client.update_artifact(artifact, ArtifactUpdate(data=percent)))

    def conclude(self, outcome: SessionOutcome) -> None:
        """Closes the open block and publishes the closing report: the session's outcome and the latest metrics."""
        self._close(Completed())
        context = self._context
        try:
            newest = context.ledger.metrics.latest(context.run)
        except LedgerError as error:
            log.warning("the closing report to Prefect lacks the metrics: %s", error)
            newest = {}
        keys = ("evaluation/accuracy", "reward/mean", "entropy", "tokens_per_second", "seconds/iteration")
        rows = [f"| {key} | {newest[key].value:.4g} | {newest[key].step} |" for key in keys if key in newest]
        lines = [
            f"# {context.run}: {outcome.state} at iteration {outcome.iteration} of {context.spec.iterations}",
            "",
            outcome.reason,
            "",
            "| metric | last value | iteration |",
            "|---|---|---|",
            *rows,
        ]
        self.note("report", "\n".join(lines), f"Driver session of {context.run}")

    def waiting(self, what: str) -> None:
        """Shows as the flow run's state what the run waits for; an empty text: nothing any more."""
        if (flow_run := self._flow_run) is None:
            return
        state: State[Any] = Running(name="Waiting", message=what) if what else Running()
        # Forced, since Prefect would take the change from running to running for a mistake.
        self._client.ask(lambda client: client.set_flow_run_state(flow_run, state, force=True))

    def note(self, name: str, markdown: str, description: str) -> None:
        """Publishes a Markdown artifact of the flow run; its key is the run's name and `name`."""
        self._artifact("markdown", markdown, name, description)

    def fail(self, error: BaseException) -> None:
        """Closes the open block after an error that ends the session, without hiding that error."""
        why = redact(f"{type(error).__name__}: {error}")
        self._close(Failed(message=why) if isinstance(error, Exception) else Crashed(message=why))

    def end(self) -> None:
        """Gives later task runs the tags of their flow run again."""
        self._untagged.__exit__()

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _close(self, state: State[Any]) -> None:
        block = self._block
        if block is None:
            return
        driven = replace(block, last=max(block.first, self._done))
        if self._done >= block.first:
            points = self._log()
            if points is not None:
                rows = table(points, range(driven.first, driven.last + 1))
                text = f"{driven.name[0].upper()}{driven.name[1:]} of {self._context.run}"
                self._artifact("table", json.dumps(rows), block.key, text)
        self._children.close(state, driven.name if driven.last < block.last else None)
        self._block = None

    def _log(self) -> Mapping[str, Mapping[int, float]] | None:
        """Adds a line for each iteration since the last call to the logs of the flow run and its block.

        Returns the points. None if the ledger cannot be read: the lines then follow at the next call.
        """
        context = self._context
        child = self._children.current
        count = self._done - (self._block.first if self._block is not None else self._done) + 1
        try:
            points = {key: dict(context.ledger.metrics.newest(context.run, key, count)) for key in COLUMNS.values()}
        except LedgerError as error:
            log.warning("Prefect does not show the newest iterations for now: %s", error)
            return None
        now = datetime.now(UTC)
        target = context.spec.iterations
        lines = [line(points, iteration, target) for iteration in range(self._logged + 1, self._done + 1)]
        self._logged = self._done
        targets = [key for key in (self._flow_run, None if child is None else child.id) if key is not None]
        records = [
            LogCreate(name=LOGGER, level=logging.INFO, message=text, timestamp=now, flow_run_id=key)
            for key in targets
            for text in lines
        ]
        if records:
            self._client.ask(lambda client: client.create_logs(records))
        return points

    def _artifact(self, kind: str, data: str | float, name: str, description: str) -> UUID | None:
        child = self._children.current if kind == "table" else None
        artifact = ArtifactCreate(
            type=kind,
            key=f"{self._context.run}-{name}",
            description=description,
            data=data,
            flow_run_id=self._flow_run if child is None else child.id,
        )
        created = self._client.ask(lambda client: client.create_artifact(artifact))
        return None if created is None else created.id


@contextmanager
def flow_run_report(session: DriverSession) -> Iterator[FlowRunReport]:
    """Yields the report of a session to the current flow run, for the duration of the training loop."""
    observer = session.context.observer
    with OptionalClient.open(observer.warned, observer.stage, observer.settled) as client:
        report = FlowRunReport(client, session)
        try:
            yield report
        except BaseException as error:
            report.fail(error)
            raise
        finally:
            report.end()
