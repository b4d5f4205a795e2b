"""What Prefect's UI shows of a segment: one progress artifact, and a report in Markdown at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact

from flows.segment import Outcome, Segment

UPDATE_SECONDS = 5.0


class Progress:
    """Share of the iterations that are committed; told to Prefect at most every few seconds."""

    def __init__(self, artifact: UUID, target: int) -> None:
        self._artifact, self._target, self._told = artifact, target, time.monotonic()

    def update(self, iteration: int) -> None:
        """Tells how far the run is, unless it was told a moment ago."""
        if time.monotonic() - self._told >= UPDATE_SECONDS:
            self._tell(iteration)

    def _tell(self, iteration: int) -> None:
        self._told = time.monotonic()
        update_progress_artifact(self._artifact, progress=100.0 * max(0, iteration) / self._target)


@contextmanager
def progress(segment: Segment) -> Iterator[Progress]:
    """A progress artifact for the segment's stay in its loop."""
    artifact = create_progress_artifact(0.0, key=f"{segment.run}-progress", description=f"Iterations of {segment.run}")
    if not isinstance(artifact, UUID):
        raise TypeError("create_progress_artifact returned no identifier in a synchronous flow")
    yield Progress(artifact, segment.spec.iterations)


def report(segment: Segment, outcome: Outcome) -> None:
    """The closing report: what the segment came to, in numbers."""
    newest = segment.ledger.metrics.latest(segment.run)
    keys = ("evaluation/accuracy", "reward/mean", "entropy", "tokens_per_second", "seconds/iteration")
    rows = [f"| {key} | {newest[key].value:.4g} | {newest[key].step} |" for key in keys if key in newest]
    lines = [
        f"# {segment.run}: {outcome.state} at iteration {outcome.iteration} of {segment.spec.iterations}",
        "",
        outcome.reason,
        "",
        "| metric | last value | iteration |",
        "|---|---|---|",
        *rows,
    ]
    create_markdown_artifact("\n".join(lines), key=f"{segment.run}-report", description=f"Segment of {segment.run}")
