"""Pipelines: the attempts at their jobs, with the digests of what they read and produced.

Consumes the fence of a pipeline's lease, which all writes of its driver carry. A process that was replaced can no longer write.
What a job did is found again by the digest of everything that it read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError

from db.core.engine import Database, Fence
from db.core.errors import Fenced
from db.core.lease_rows import create_lease, free_lease, live_holder_of, missing_pipeline
from db.core.models import Lease
from db.core.pipeline_models import JobRow as JobRow
from db.core.pipeline_models import Pipeline
from db.core.subjects import PIPELINE, of_pipeline

RUNNING = "running"
WAITING = "waiting"
FAILED = "failed"
FINISHED = "finished"
"""States of a pipeline."""
LOST = "lost"
DONE = "done"
SKIPPED = "skipped"
"""States of an attempt at a job, besides running, waiting and failed."""
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class NewPipeline:
    """A run of a pipeline that is to be created.

    digest: identifies spec and folder.
    folder: what the spec's paths are relative to.
    by: who starts it.
    """

    name: str
    digest: str
    spec: Mapping[str, Any]
    folder: str
    by: str


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A run of a pipeline; the fields are the table's columns.

    holder: who drives it; None if nobody does.
    """

    id: str
    name: str
    number: int
    digest: str
    spec: Mapping[str, Any]
    folder: str
    by: str
    state: str
    reason: str
    created_at: int
    ended_at: int | None
    holder: str | None


class Pipelines:
    """Writes and reads pipelines and their jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, new: NewPipeline) -> PipelineRow:
        """Creates a run of a pipeline, or returns the newest one of this name if it has this digest and has not finished."""
        return creating(lambda: self._create(new))

    def _create(self, new: NewPipeline) -> PipelineRow:
        with self._database.write() as connection:
            last = newest_of(connection, new.name)
            if last is not None and last.digest == new.digest and last.state != FINISHED:
                return last
            return insert_pipeline(connection, new, last, self._database.time(connection))

    def find(self, pipeline: str) -> PipelineRow:
        """Returns a run of a pipeline. Raises `PipelineNotFound`."""
        with self._database.read() as connection:
            return _found(connection, pipeline)

    def newest(self, limit: int = 100) -> list[PipelineRow]:
        """Returns the newest runs of pipelines, newest first."""
        query = _select_pipelines().order_by(Pipeline.created_at.desc(), Pipeline.id.desc())
        with self._database.read() as connection:
            return [PipelineRow(**row._mapping) for row in connection.execute(query.limit(limit))]

    def last_of(self, name: str) -> PipelineRow | None:
        """Returns the newest run of the pipeline of a name; None if there is none."""
        query = _select_pipelines().where(Pipeline.name == name).order_by(Pipeline.number.desc())
        with self._database.read() as connection:
            row = connection.execute(query.limit(1)).one_or_none()
        return None if row is None else PipelineRow(**row._mapping)

    def last_finished(self, name: str) -> PipelineRow | None:
        """Returns the run of the pipeline of a name that finished last; None if there is none."""
        finished = (Pipeline.name == name, Pipeline.state == FINISHED)
        query = _select_pipelines().where(*finished)
        with self._database.read() as connection:
            newest = query.order_by(Pipeline.ended_at.desc(), Pipeline.number.desc()).limit(1)
            row = connection.execute(newest).one_or_none()
        return None if row is None else PipelineRow(**row._mapping)

    def is_interrupted(self, pipeline: str) -> bool:
        """Returns True if a pipeline is running by its record, but its process has died, or never began."""
        with self._database.read() as connection:
            state = connection.execute(select(Pipeline.state).where(Pipeline.id == pipeline)).scalar_one()
            return state == RUNNING and live_holder_of(connection, self._database, of_pipeline(pipeline)) is None

    def release(self, fence: Fence, state: str, reason: str) -> None:
        """Records how a pipeline stands, and lets others drive it. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, now):
            ended = {"state": state, "reason": reason, "ended_at": now if state == FINISHED else None}
            connection.execute(update(Pipeline).where(Pipeline.id == fence.name_as(PIPELINE)).values(**ended))
            free_lease(connection, fence.subject, now)

    def begin(self, fence: Fence, job: str, key: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> JobRow:
        """Begins an attempt at a job.

        outputs: what an earlier attempt on the same inputs has left behind, such as a run to drive on.

        Raises `Fenced`.
        """
        pipeline = fence.name_as(PIPELINE)
        with self._database.fenced(fence) as (connection, now):
            same = (JobRow.pipeline == pipeline, JobRow.job == job)
            last = connection.execute(select(func.max(JobRow.number)).where(*same)).scalar_one() or 0
            values = {
                **{"pipeline": pipeline, "job": job, "number": last + 1, "state": RUNNING, "key": key},
                **{"inputs": dict(inputs), "outputs": dict(outputs), "reason": "", "started_at": now},
            }
            connection.execute(insert(JobRow), values)
        return JobRow(
            pipeline=pipeline,
            job=job,
            number=last + 1,
            state=RUNNING,
            key=key,
            inputs=inputs,
            outputs=outputs,
            reason="",
            started_at=now,
            ended_at=None,
        )

    def note(self, fence: Fence, attempt: JobRow, outputs: Mapping[str, Any]) -> None:
        """Records what an attempt has produced so far. Raises `Fenced`."""
        with self._attempt(fence, attempt) as (connection, _):
            connection.execute(update(JobRow).where(*_key(attempt)).values(outputs=dict(outputs)))

    def end(self, fence: Fence, attempt: JobRow, state: str, outputs: Mapping[str, Any], reason: str = "") -> None:
        """Records how an attempt ended. Raises `Fenced`."""
        with self._attempt(fence, attempt) as (connection, now):
            ended = {"state": state, "outputs": dict(outputs), "reason": reason, "ended_at": now}
            connection.execute(update(JobRow).where(*_key(attempt)).values(**ended))

    def jobs(self, pipeline: str) -> dict[str, JobRow]:
        """Returns the newest attempt at each job that has begun."""
        query = select(JobRow.__table__).where(JobRow.pipeline == pipeline).order_by(JobRow.number)
        with self._database.read() as connection:
            return {row.job: JobRow(**row._mapping) for row in connection.execute(query)}

    def same(self, key: str) -> list[JobRow]:
        """Returns the attempts at a job on the same inputs, of any pipeline, newest first."""
        query = select(JobRow.__table__).where(JobRow.key == key)
        newest = query.order_by(JobRow.started_at.desc(), JobRow.number.desc())
        with self._database.read() as connection:
            return [JobRow(**row._mapping) for row in connection.execute(newest)]

    @contextmanager
    def _attempt(self, fence: Fence, attempt: JobRow) -> Iterator[tuple[Connection, int]]:
        """Opens a transaction of the holder of the lease of an attempt's pipeline."""
        with self._database.fenced(fence) as (connection, now):
            if fence.name_as(PIPELINE) != attempt.pipeline:
                raise Fenced(f"the lease of {fence.subject} gives no right to write to pipeline {attempt.pipeline}")
            yield connection, now


def take_over(connection: Connection, pipeline: str, now: int) -> None:
    """Has a pipeline running again, for a new holder of its lease; attempts that were under way are lost.

    now: milliseconds since 1970.
    """
    connection.execute(update(Pipeline).where(Pipeline.id == pipeline).values(state=RUNNING, reason=""))
    open_ones = (JobRow.pipeline == pipeline, JobRow.state == RUNNING)
    lost = {"state": LOST, "ended_at": now, "reason": "its process died"}
    connection.execute(update(JobRow).where(*open_ones).values(**lost))


def creating(create: Callable[[], R]) -> R:
    """Returns what a transaction returns that may create a name's first run.

    It is repeated once if somebody has created that run at the same moment, since nothing serialises these transactions.
    """
    try:
        return create()
    except IntegrityError:
        return create()


def newest_of(connection: Connection, name: str) -> PipelineRow | None:
    """Returns the newest run of the pipeline of a name, of which no other can be created before this transaction ends."""
    same = Pipeline.name == name
    connection.execute(select(Pipeline.id).where(same).with_for_update()).all()
    newest = _select_pipelines().where(same).order_by(Pipeline.number.desc()).limit(1)
    row = connection.execute(newest).one_or_none()
    return None if row is None else PipelineRow(**row._mapping)


def insert_pipeline(connection: Connection, new: NewPipeline, last: PipelineRow | None, now: int) -> PipelineRow:
    """Creates a run of a pipeline.

    last: the newest run of its name.
    now: milliseconds since 1970.
    """
    number = 1 if last is None else last.number + 1
    values = {
        **{"id": f"{new.name}-{number}", "name": new.name, "number": number, "digest": new.digest},
        **{
            "spec": dict(new.spec),
            "folder": new.folder,
            "by": new.by,
            "state": RUNNING,
            "reason": "",
            "created_at": now,
        },
    }
    connection.execute(insert(Pipeline), values)
    create_lease(connection, of_pipeline(f"{new.name}-{number}"), now)
    return _found(connection, f"{new.name}-{number}")


def _select_pipelines() -> Select[Any]:
    """Returns a query for pipelines, each with the holder of its lease."""
    own = [Pipeline.__table__.columns[name] for name in PipelineRow.__slots__ if name != "holder"]
    return select(*own, Lease.holder).join(Lease, Lease.subject == literal(f"{PIPELINE}/") + Pipeline.id)


def _key(attempt: JobRow) -> tuple[Any, ...]:
    same = (JobRow.pipeline == attempt.pipeline, JobRow.job == attempt.job)
    return (*same, JobRow.number == attempt.number)


def _found(connection: Connection, pipeline: str) -> PipelineRow:
    row = connection.execute(_select_pipelines().where(Pipeline.id == pipeline)).one_or_none()
    if row is None:
        raise missing_pipeline(pipeline)
    return PipelineRow(**row._mapping)
