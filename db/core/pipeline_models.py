"""The tables of pipelines. Times are milliseconds since 1970 (UTC) by the database's clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from db.core.base import Base, OlderLease
from db.core.table_rows import Stored, TableRow, stored, stored_key


class Pipeline(Base, OlderLease):
    """A run of a pipeline; who drives it is in its lease.

    id: the pipeline's name and number.
    folder: what the spec's paths are relative to.
    state: running, waiting (for people), failed or finished.
    """

    __tablename__ = "pipeline"
    __table_args__ = (UniqueConstraint("name", "number"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    number: Mapped[int]
    digest: Mapped[str]
    spec: Mapped[dict[str, Any]]
    folder: Mapped[str]
    by: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str]
    created_at: Mapped[int]
    ended_at: Mapped[int | None]


class JobRow(TableRow, name="pipeline_job", parts=(Index("pipeline_job_key_index", "key"),)):
    """An attempt at a job.

    state: running, lost (its process died), done, skipped (done before on the same inputs), waiting or failed.
    key: digest of the job and of everything that it reads.
    inputs: the digests of what it reads, by name.
    outputs: what it has produced so far, with digests.
    """

    pipeline: Stored[str] = stored(ForeignKey("pipeline.id"), primary_key=True)
    job: Stored[str] = stored_key()
    number: Stored[int] = stored_key()
    state: Stored[str]
    key: Stored[str]
    inputs: Stored[Mapping[str, Any]]
    outputs: Stored[Mapping[str, Any]]
    reason: Stored[str]
    started_at: Stored[int]
    ended_at: Stored[int | None]


class DeploymentRow(TableRow, name="pipeline_deployment"):
    """A deployed pipeline, whose triggers are checked.

    file: its file, which is read at each check.
    by: who deployed it, in whose name its runs promote.
    """

    name: Stored[str] = stored(primary_key=True)
    file: Stored[str]
    by: Stored[str]
    at: Stored[int]


class TriggerRow(TableRow, name="pipeline_trigger", parts=(UniqueConstraint("name", "trigger", "content"),)):
    """Something that a trigger of a deployed pipeline has seen; each is acted on once.

    trigger: digest of the trigger.
    number: from 1; the first one was there when the pipeline was deployed, and begins nothing.
    content: what was seen, such as a digest or the time of a start.
    signature: of the files' sizes and times when their contents were read; empty for other triggers.
    why: for people, why a run of the pipeline began.
    pipeline: the run of the pipeline that it began; None until then.
    """

    name: Stored[str] = stored(ForeignKey("pipeline_deployment.name"), primary_key=True)
    trigger: Stored[str] = stored_key()
    number: Stored[int] = stored_key()
    content: Stored[str]
    signature: Stored[str]
    why: Stored[str]
    pipeline: Stored[str | None] = stored(ForeignKey("pipeline.id"))
    at: Stored[int]
