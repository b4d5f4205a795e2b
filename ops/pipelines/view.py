"""A pipeline for commands and pages: its jobs with what they need, how each stands, and its runs and approvals.

Consumes the ledger; produces `PipelineView`, plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from db.ledger import Ledger
from db.write.pipelines import DONE, RUNNING, SKIPPED, JobRow, PipelineRow
from flows.pipelines.spec import parse_pipeline
from ops.presentation.columns import (
    Cell,
    Column,
    Columns,
    CommandCell,
    DigestCell,
    LinkCell,
    Medium,
    MomentCell,
    RunCell,
)

PLANNED = "planned"
"""The state of a job that has not begun."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job.

    level: number of jobs before it on the longest way to it.
    attempts: how often it has begun.
    run: the run that it drives, measures or promotes; None if there is none.
    approval: number of the approval that it asked for; None if it asked for none.
    """

    name: str
    kind: str
    needs: tuple[str, ...]
    level: int
    state: str
    reason: str
    attempts: int
    run: str | None
    approval: int | None
    key: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    started_at: int | None
    ended_at: int | None


@dataclass(frozen=True, slots=True)
class PipelineView:
    """A run of a pipeline.

    holder: the process that drives it, which may be dead; None if there is none.
    interrupted: whether it is running by its record, but no process drives it any more.
    began_by: what its triggers saw; empty if somebody started it.
    remembered: what its triggers have seen since, for which another run follows; empty if it is not the newest one.
    """

    pipeline: str
    name: str
    state: str
    reason: str
    by: str
    created_at: int
    ended_at: int | None
    holder: str | None
    interrupted: bool
    began_by: tuple[str, ...]
    remembered: tuple[str, ...]
    jobs: tuple[JobView, ...]

    @property
    def standing(self) -> str:
        """Its state, or that it was interrupted."""
        return "interrupted" if self.interrupted else self.state

    @property
    def why(self) -> str:
        """Why it stands as it does; commands are between backticks."""
        return f"`yatt pipeline resume {self.pipeline}` goes on" if self.interrupted else self.reason


def pipeline_view(ledger: Ledger, pipeline: str) -> PipelineView:
    """Returns a run of a pipeline. Raises `PipelineNotFound`."""
    return _view(ledger, ledger.pipelines.find(pipeline))


def pipeline_list(ledger: Ledger) -> tuple[PipelineView, ...]:
    """Returns the newest runs of pipelines, newest first."""
    return tuple(_view(ledger, row) for row in ledger.pipelines.newest())


def _view(ledger: Ledger, row: PipelineRow) -> PipelineView:
    spec = parse_pipeline(dict(row.spec), f"the spec of pipeline {row.id}")
    rows = ledger.pipelines.jobs(row.id)
    levels: dict[str, int] = {}
    for name in spec.order():
        levels[name] = 1 + max((levels[each] for each in spec.needs(name)), default=-1)
    jobs = tuple(
        _job(
            name=name, kind=spec.jobs[name].kind, needs=sorted(spec.needs(name)), level=levels[name], row=rows.get(name)
        )
        for name in spec.order()
    )
    began_by = tuple(each.why for each in ledger.pipeline_triggers.of(row.id))
    last = ledger.pipelines.last_of(row.name)
    is_last = last is not None and last.id == row.id
    remembered = tuple(each.why for each in ledger.pipeline_triggers.remembered(row.name)) if is_last else ()
    interrupted = row.state == RUNNING and ledger.pipelines.is_interrupted(row.id)
    return PipelineView(
        pipeline=row.id,
        name=row.name,
        state=row.state,
        reason=row.reason,
        by=row.by,
        created_at=row.created_at,
        ended_at=row.ended_at,
        holder=row.holder,
        interrupted=interrupted,
        began_by=began_by,
        remembered=remembered,
        jobs=jobs,
    )


def _job(name: str, kind: str, needs: list[str], level: int, row: JobRow | None) -> JobView:
    if row is None:
        return JobView(
            name=name,
            kind=kind,
            needs=tuple(needs),
            level=level,
            state=PLANNED,
            reason="",
            attempts=0,
            run=None,
            approval=None,
            key="",
            inputs={},
            outputs={},
            started_at=None,
            ended_at=None,
        )
    return JobView(
        name=name,
        kind=kind,
        needs=tuple(needs),
        level=level,
        state=row.state,
        reason=row.reason,
        attempts=row.number,
        run=row.outputs.get("run"),
        approval=row.outputs.get("approval"),
        key=row.key,
        inputs=row.inputs,
        outputs=row.outputs,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def _done(view: PipelineView) -> str:
    return f"{sum(job.state in (DONE, SKIPPED) for job in view.jobs)} of {len(view.jobs)}"


def _approval(job: JobView) -> Cell:
    return "" if job.approval is None else LinkCell(str(job.approval), f"/approvals/{job.approval}")


PIPELINES: Columns[PipelineView] = (
    Column("pipeline", lambda view: LinkCell(view.pipeline, f"/pipelines/{quote(view.pipeline)}"), heads=True),
    Column("state", lambda view: view.standing),
    Column("jobs done", _done, number=True),
    Column("why", lambda view: CommandCell(view.why), style="break"),
    Column("started by", lambda view: view.by),
    Column("since", lambda view: MomentCell(view.created_at), style="nowrap"),
    Column("began because", lambda view: "; ".join(view.began_by), style="break"),
)
JOBS: Columns[JobView] = (
    Column("job", lambda job: job.name, heads=True),
    Column("kind", lambda job: job.kind),
    Column("needs", lambda job: ", ".join(job.needs)),
    Column("state", lambda job: job.state),
    Column("run", lambda job: "" if job.run is None else RunCell(job.run)),
    Column("approval", _approval),
    Column("inputs", lambda job: DigestCell(job.key), medium=Medium.PAGE),
    Column("why", lambda job: job.reason, style="break"),
)
