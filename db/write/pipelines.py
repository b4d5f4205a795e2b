"""Pipelines: who drives one, and the attempts at its jobs, with the digests of what they read and produced.

Consumes the process that drives a pipeline; produces a `PipelineFence`, which all its writes carry. A process that was replaced
can no longer write. What a job did is found again by the digest of everything that it read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from db.core.engine import Database
from db.core.errors import Fenced, LeaseHeld, PipelineNotFound
from db.core.holder import Holder, holder_columns, live_holder
from db.core.pipeline_models import Pipeline, PipelineJob

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
class PipelineFence:
    """The right to write to a pipeline, until another process has driven it."""

    pipeline: str
    term: int


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


@dataclass(frozen=True, slots=True)
class JobRow:
    """An attempt at a job; the fields are the table's columns."""

    pipeline: str
    job: str
    number: int
    state: str
    key: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    reason: str
    started_at: int
    ended_at: int | None


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
        query = select(*_columns(Pipeline, PipelineRow)).order_by(Pipeline.created_at.desc(), Pipeline.id.desc())
        with self._database.read() as connection:
            return [PipelineRow(**row._mapping) for row in connection.execute(query.limit(limit))]

    def last_of(self, name: str) -> PipelineRow | None:
        """Returns the newest run of the pipeline of a name; None if there is none."""
        query = select(*_columns(Pipeline, PipelineRow)).where(Pipeline.name == name).order_by(Pipeline.number.desc())
        with self._database.read() as connection:
            row = connection.execute(query.limit(1)).one_or_none()
        return None if row is None else PipelineRow(**row._mapping)

    def last_finished(self, name: str) -> PipelineRow | None:
        """Returns the run of the pipeline of a name that finished last; None if there is none."""
        finished = (Pipeline.name == name, Pipeline.state == FINISHED)
        query = select(*_columns(Pipeline, PipelineRow)).where(*finished)
        with self._database.read() as connection:
            newest = query.order_by(Pipeline.ended_at.desc(), Pipeline.number.desc()).limit(1)
            row = connection.execute(newest).one_or_none()
        return None if row is None else PipelineRow(**row._mapping)

    def acquire(self, pipeline: str, holder: Holder, ttl_seconds: float) -> PipelineFence:
        """Lets a process drive a pipeline; attempts of an earlier one that were under way are lost.

        Raises `PipelineNotFound`; `LeaseHeld` while another process drives it.
        """
        with self._database.write() as connection:
            row = connection.execute(
                select(Pipeline.__table__).where(Pipeline.id == pipeline).with_for_update()
            ).first()
            if row is None:
                raise _missing(pipeline)
            now = self._database.time(connection)
            if (before := live_holder(row, now)) is not None:
                raise LeaseHeld(pipeline, before.text, (row.expires_at - now) / 1000)
            taken = {"term": row.term + 1, **holder_columns(holder)}
            connection.execute(
                update(Pipeline)
                .where(Pipeline.id == pipeline)
                .values(**taken, expires_at=now + round(ttl_seconds * 1000), state=RUNNING, reason="")
            )
            open_ones = (PipelineJob.pipeline == pipeline, PipelineJob.state == RUNNING)
            lost = {"state": LOST, "ended_at": now, "reason": "its process died"}
            connection.execute(update(PipelineJob).where(*open_ones).values(**lost))
            return PipelineFence(pipeline, row.term + 1)

    def is_interrupted(self, pipeline: str) -> bool:
        """Returns True if a pipeline is running by its record, but its process has died, or never began."""
        with self._database.read() as connection:
            row = connection.execute(select(Pipeline.__table__).where(Pipeline.id == pipeline)).one()
            return row.state == RUNNING and live_holder(row, self._database.time(connection)) is None

    def renew(self, fence: PipelineFence, ttl_seconds: float) -> None:
        """Keeps the right to drive a pipeline for some more time. Raises `Fenced`."""
        with self._fenced(fence) as (connection, now):
            expires = {"expires_at": now + round(ttl_seconds * 1000)}
            connection.execute(update(Pipeline).where(Pipeline.id == fence.pipeline).values(**expires))

    def release(self, fence: PipelineFence, state: str, reason: str) -> None:
        """Records how a pipeline stands, and lets others drive it. Raises `Fenced`."""
        with self._fenced(fence) as (connection, now):
            ended = {"state": state, "reason": reason, "ended_at": now if state == FINISHED else None}
            connection.execute(
                update(Pipeline)
                .where(Pipeline.id == fence.pipeline)
                .values(**ended, **holder_columns(None), expires_at=now)
            )

    def begin(
        self, fence: PipelineFence, job: str, key: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> JobRow:
        """Begins an attempt at a job.

        outputs: what an earlier attempt on the same inputs has left behind, such as a run to drive on.

        Raises `Fenced`.
        """
        with self._fenced(fence) as (connection, now):
            same = (PipelineJob.pipeline == fence.pipeline, PipelineJob.job == job)
            last = connection.execute(select(func.max(PipelineJob.number)).where(*same)).scalar_one() or 0
            values = {
                **{"pipeline": fence.pipeline, "job": job, "number": last + 1, "state": RUNNING, "key": key},
                **{"inputs": dict(inputs), "outputs": dict(outputs), "reason": "", "started_at": now},
            }
            connection.execute(insert(PipelineJob), values)
        return JobRow(
            pipeline=fence.pipeline,
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

    def note(self, fence: PipelineFence, attempt: JobRow, outputs: Mapping[str, Any]) -> None:
        """Records what an attempt has produced so far. Raises `Fenced`."""
        with self._fenced(fence) as (connection, _):
            connection.execute(update(PipelineJob).where(*_key(attempt)).values(outputs=dict(outputs)))

    def end(
        self, fence: PipelineFence, attempt: JobRow, state: str, outputs: Mapping[str, Any], reason: str = ""
    ) -> None:
        """Records how an attempt ended. Raises `Fenced`."""
        with self._fenced(fence) as (connection, now):
            ended = {"state": state, "outputs": dict(outputs), "reason": reason, "ended_at": now}
            connection.execute(update(PipelineJob).where(*_key(attempt)).values(**ended))

    def jobs(self, pipeline: str) -> dict[str, JobRow]:
        """Returns the newest attempt at each job that has begun."""
        query = select(PipelineJob.__table__).where(PipelineJob.pipeline == pipeline).order_by(PipelineJob.number)
        with self._database.read() as connection:
            return {row.job: JobRow(**row._mapping) for row in connection.execute(query)}

    def same(self, key: str) -> list[JobRow]:
        """Returns the attempts at a job on the same inputs, of any pipeline, newest first."""
        query = select(PipelineJob.__table__).where(PipelineJob.key == key)
        newest = query.order_by(PipelineJob.started_at.desc(), PipelineJob.number.desc())
        with self._database.read() as connection:
            return [JobRow(**row._mapping) for row in connection.execute(newest)]

    @contextmanager
    def _fenced(self, fence: PipelineFence) -> Iterator[tuple[Connection, int]]:
        with self._database.write() as connection:
            query = select(Pipeline.term).where(Pipeline.id == fence.pipeline).with_for_update()
            term = connection.execute(query).scalar_one()
            if term != fence.term:
                raise Fenced(
                    f"pipeline {fence.pipeline}: another process drives it now (term {term}, not {fence.term})"
                )
            yield connection, self._database.time(connection)


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
    newest = select(*_columns(Pipeline, PipelineRow)).where(same).order_by(Pipeline.number.desc()).limit(1)
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
        **{"spec": dict(new.spec), "folder": new.folder, "by": new.by, "state": RUNNING, "reason": ""},
        **{"term": 0, "expires_at": 0, "created_at": now},
    }
    connection.execute(insert(Pipeline), values)
    return _found(connection, f"{new.name}-{number}")


def _columns(table: Any, kind: Any) -> list[Any]:
    return [table.__table__.columns[name] for name in kind.__slots__]


def _key(attempt: JobRow) -> tuple[Any, ...]:
    same = (PipelineJob.pipeline == attempt.pipeline, PipelineJob.job == attempt.job)
    return (*same, PipelineJob.number == attempt.number)


def _found(connection: Connection, pipeline: str) -> PipelineRow:
    row = connection.execute(select(*_columns(Pipeline, PipelineRow)).where(Pipeline.id == pipeline)).one_or_none()
    if row is None:
        raise _missing(pipeline)
    return PipelineRow(**row._mapping)


def _missing(pipeline: str) -> PipelineNotFound:
    return PipelineNotFound(f"there is no pipeline {pipeline!r} in this ledger; see `yatt pipeline list`")
