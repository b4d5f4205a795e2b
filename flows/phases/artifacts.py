"""A session's artifacts in Prefect's UI: a progress bar, and a Markdown report at the end.

They are for display only: a Prefect server that is unreachable for a while, such as during a restart, never ends a run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext

from flows.driver.context import RunContext
from flows.driver.run_status import Outcome
from flows.prefect_io.optional_client import OptionalClient

UPDATE_SECONDS = 5.0


class Progress:
    """The percentage of committed iterations, reported to Prefect at most once every `UPDATE_SECONDS`."""

    def __init__(self, client: OptionalClient, context: RunContext) -> None:
        self._client, self._context, self._told = client, context, time.monotonic()
        self._artifact: UUID | None = None

    def begin(self) -> None:
        """Creates the artifact. If Prefect does not answer, nothing is reported."""
        self._artifact = self._create("progress", 0.0, "progress", f"Iterations of {self._context.run}")

    def update(self, iteration: int) -> None:
        """Reports the last committed iteration, unless the previous report is too recent."""
        artifact = self._artifact
        if artifact is None or time.monotonic() - self._told < UPDATE_SECONDS:
            return
        self._told = time.monotonic()
        percent = 100.0 * max(0, iteration) / self._context.spec.iterations
        self._client.ask(lambda client: client.update_artifact(artifact, ArtifactUpdate(data=percent)))

    def conclude(self, outcome: Outcome) -> None:
        """Publishes the closing report: the outcome of the session and the latest metrics."""
        context = self._context
        newest = context.ledger.metrics.latest(context.run)
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

    def note(self, name: str, markdown: str, description: str) -> None:
        """Publishes a Markdown artifact of the current flow run; its key is the run's name and `name`."""
        self._create("markdown", markdown, name, description)

    def _create(self, kind: str, data: str | float, name: str, description: str) -> UUID | None:
        parent = FlowRunContext.get()
        artifact = ArtifactCreate(
            type=kind,
            key=f"{self._context.run}-{name}",
            description=description,
            data=data,
            flow_run_id=None if parent is None or parent.flow_run is None else parent.flow_run.id,
        )
        created = self._client.ask(lambda client: client.create_artifact(artifact))
        return None if created is None else created.id


@contextmanager
def progress(context: RunContext) -> Iterator[Progress]:
    """Yields a progress artifact for the duration of the training loop."""
    with OptionalClient.open(context.observer.warned, context.observer.stage) as client:
        shown = Progress(client, context)
        shown.begin()
        yield shown
