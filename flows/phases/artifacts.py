"""A session's artifacts in Prefect's UI: a progress bar, and a Markdown report at the end.

They are for display only: a Prefect server that is unreachable for a while, such as during a restart, never ends a run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact

from flows.driver.context import RunContext
from flows.driver.run_status import Outcome
from flows.prefect_io.prefect_client import AWAY, server_trouble

log = logging.getLogger("yatt_core.flow")
UPDATE_SECONDS = 5.0


@contextmanager
def _optional() -> Iterator[None]:
    try:
        yield
    except AWAY as error:
        log.warning("Prefect did not accept an artifact: %s", server_trouble(error))


class Progress:
    """The percentage of committed iterations, reported to Prefect at most once every `UPDATE_SECONDS`.

    artifact: None if Prefect did not create one, in which case nothing is reported.
    """

    def __init__(self, artifact: UUID | None, target: int) -> None:
        self._artifact, self._target, self._told = artifact, target, time.monotonic()

    def update(self, iteration: int) -> None:
        """Reports the last committed iteration, unless the previous report is too recent."""
        if self._artifact is None or time.monotonic() - self._told < UPDATE_SECONDS:
            return
        self._told = time.monotonic()
        with _optional():
            update_progress_artifact(self._artifact, progress=100.0 * max(0, iteration) / self._target)


@contextmanager
def progress(context: RunContext) -> Iterator[Progress]:
    """Yields a progress artifact for the duration of the training loop."""
    artifact = None
    with _optional():
        artifact = create_progress_artifact(
            0.0, key=f"{context.run}-progress", description=f"Iterations of {context.run}"
        )
    yield Progress(artifact if isinstance(artifact, UUID) else None, context.spec.iterations)


def publish_note(key: str, markdown: str, description: str) -> None:
    """Publishes a Markdown artifact of the current flow run."""
    with _optional():
        create_markdown_artifact(markdown, key=key, description=description)


def report(context: RunContext, outcome: Outcome) -> None:
    """Publishes the closing report: the outcome of the session and the latest metrics."""
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
    with _optional():
        create_markdown_artifact(
            "\n".join(lines), key=f"{context.run}-report", description=f"Driver session of {context.run}"
        )
