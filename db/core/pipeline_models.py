"""The tables of pipelines. Times are milliseconds since 1970 (UTC) by the database's clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from db.core.base import Base, key_part


class Pipeline(Base):
    """A run of a pipeline, and who drives it.

    id: the pipeline's name and number.
    folder: what the spec's paths are relative to.
    state: running, waiting (for people), failed or finished.
    term: incremented by each process that drives it; earlier ones can no longer write.
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
    term: Mapped[int]
    holder: Mapped[str | None]
    host: Mapped[str | None]
    boot_id: Mapped[str | None]
    pid: Mapped[int | None]
    process_start: Mapped[int | None]
    expires_at: Mapped[int]


class PipelineJob(Base):
    """An attempt at a job.

    state: running, lost (its process died), done, skipped (done before on the same inputs), waiting or failed.
    key: digest of the job and of everything that it reads.
    inputs: the digests of what it reads, by name.
    outputs: what it has produced so far, with digests.
    """

    __tablename__ = "pipeline_job"
    __table_args__ = (Index("pipeline_job_key_index", "key"),)

    pipeline: Mapped[str] = mapped_column(ForeignKey("pipeline.id"), primary_key=True)
    job: Mapped[str] = key_part()
    number: Mapped[int] = key_part()
    state: Mapped[str]
    key: Mapped[str]
    inputs: Mapped[dict[str, Any]]
    outputs: Mapped[dict[str, Any]]
    reason: Mapped[str]
    started_at: Mapped[int]
    ended_at: Mapped[int | None]


class PipelineDeployment(Base):
    """A deployed pipeline, whose triggers are checked.

    file: its file, which is read at each check.
    by: who deployed it, in whose name its runs promote.
    """

    __tablename__ = "pipeline_deployment"

    name: Mapped[str] = mapped_column(primary_key=True)
    file: Mapped[str]
    by: Mapped[str]
    at: Mapped[int]


class PipelineTriggerTable(Base):
    """Something that a trigger of a deployed pipeline has seen; each is acted on once.

    trigger: digest of the trigger.
    number: from 1; the first one was there when the pipeline was deployed, and begins nothing.
    content: what was seen, such as a digest or the time of a start.
    signature: of the files' sizes and times when their contents were read; empty for other triggers.
    why: for people, why a run of the pipeline began.
    pipeline: the run of the pipeline that it began; None until then.
    """

    __tablename__ = "pipeline_trigger"
    __table_args__ = (UniqueConstraint("name", "trigger", "content"),)

    name: Mapped[str] = mapped_column(ForeignKey("pipeline_deployment.name"), primary_key=True)
    trigger: Mapped[str] = key_part()
    number: Mapped[int] = key_part()
    content: Mapped[str]
    signature: Mapped[str]
    why: Mapped[str]
    pipeline: Mapped[str | None] = mapped_column(ForeignKey("pipeline.id"))
    at: Mapped[int]
