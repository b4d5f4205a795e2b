"""The ledger's tables. Times are milliseconds since 1970 (UTC) by the database's clock; durations are seconds.

Most tables refer to a run; results are keyed by (run, branch, iteration). Only types that both SQLite and PostgreSQL support
are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ForeignKey, ForeignKeyConstraint, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from db.core.base import Base as Base
from db.core.base import ChainLink, key_part, run_key
from db.core.home_models import HomeEvent as HomeEvent
from db.core.metric_models import MetricPoint as MetricPoint
from db.core.metric_models import MetricSeries as MetricSeries
from db.core.metric_models import Outbox as Outbox
from db.core.people_models import RunNote as RunNote
from db.core.people_models import RunTag as RunTag
from db.core.pipeline_models import DeploymentRow as DeploymentRow
from db.core.pipeline_models import JobRow as JobRow
from db.core.pipeline_models import Pipeline as Pipeline
from db.core.pipeline_models import TriggerRow as TriggerRow
from db.core.queue_models import QueueOutage as QueueOutage
from db.core.queue_models import QueueScheduler as QueueScheduler
from db.core.queue_rows import AllocationRow as AllocationRow
from db.core.queue_rows import EntryRow as EntryRow
from db.core.queue_rows import ForecastRow as ForecastRow
from db.core.suite_models import SuiteEvaluation as SuiteEvaluation
from db.core.table_rows import Stored, TableRow, stored, stored_key, stored_run
from db.core.wait_models import RunWait as RunWait


class RunTable(Base):
    """A training job.

    iteration: newest commit along the current branch; -1 before the first.
    """

    __tablename__ = "run"
    __table_args__ = (UniqueConstraint("spec_name", "number"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    spec_name: Mapped[str]
    number: Mapped[int]
    state: Mapped[str]
    state_reason: Mapped[str]
    desired_state: Mapped[str]
    stop_at: Mapped[int | None]
    """Time by which a driver that was asked to stop must have ended; null: no deadline."""
    target_iterations: Mapped[int]
    current_branch: Mapped[int]
    iteration: Mapped[int]
    committed_at: Mapped[int | None]
    mlflow_run_id: Mapped[str | None]
    created_at: Mapped[int]
    event_seq: Mapped[int]
    """The head of the audit chain: number (here) and hash (below) of its last event."""
    event_hash: Mapped[str]


class Revision(TableRow, name="spec_revision"):
    """A version of a run's spec; the first is 1. It is immutable; each change adds the next revision."""

    run: Stored[str] = stored_run()
    revision: Stored[int] = stored_key()
    digest: Stored[str]
    spec: Stored[Mapping[str, Any]]
    reason: Stored[str]
    created_at: Stored[int]


class Branch(Base):
    """A line of iterations. It starts after parent_iteration of its parent; branch 0 of a fork has a parent run."""

    __tablename__ = "branch"

    run: Mapped[str] = run_key()
    number: Mapped[int] = key_part()
    parent_run: Mapped[str | None] = mapped_column(ForeignKey("run.id"))
    parent_branch: Mapped[int | None]
    parent_iteration: Mapped[int | None]
    reason: Mapped[str]
    created_at: Mapped[int]


class Lease(Base):
    """The right to do something that one process at a time may do; while holder is null, the lease is free.

    subject: what it is the right to (`db.core.subjects`).
    run: of a run's lease; null for others.
    term: incremented by each holder; earlier ones can no longer write.
    """

    __tablename__ = "lease"
    __table_args__ = (UniqueConstraint("run"),)

    subject: Mapped[str] = mapped_column(primary_key=True)
    run: Mapped[str | None] = mapped_column(ForeignKey("run.id"))
    term: Mapped[int]
    holder: Mapped[str | None]
    host: Mapped[str | None]
    boot_id: Mapped[str | None]
    pid: Mapped[int | None]
    process_start: Mapped[int | None]
    ttl_ms: Mapped[int]
    expires_at: Mapped[int]


class DriverSessionTable(Base):
    """A flow run's time as driver of the run, from taking the lease to releasing it; one per term."""

    __tablename__ = "driver_session"

    run: Mapped[str] = run_key()
    term: Mapped[int] = key_part()
    flow_run_id: Mapped[str]
    flow_run_name: Mapped[str]
    started_at: Mapped[int]
    ended_at: Mapped[int | None]
    outcome: Mapped[str | None]


class Iteration(Base):
    """A committed iteration.

    fingerprint: what a replay of its update must reproduce.
    """

    __tablename__ = "iteration"

    run: Mapped[str] = run_key()
    branch: Mapped[int] = key_part()
    iteration: Mapped[int] = key_part()
    term: Mapped[int]
    experience_digest: Mapped[str | None]
    weights_digest: Mapped[str | None]
    fingerprint: Mapped[dict[str, Any]]
    committed_at: Mapped[int]


class ControlStateTable(Base):
    """The small part of a run's state that each commit records: cursor, averages, coefficients, policy state."""

    __tablename__ = "control_state"

    run: Mapped[str] = run_key()
    branch: Mapped[int] = key_part()
    iteration: Mapped[int] = key_part()
    state: Mapped[dict[str, Any]]


class AttemptRow(
    TableRow,
    name="phase_attempt",
    parts=(
        Index(
            "phase_attempt_open_index",
            "run",
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
        Index(
            "phase_attempt_ended_index",
            "run",
            "phase",
            "ended_at",
            sqlite_where=text("ended_at IS NOT NULL"),
            postgresql_where=text("ended_at IS NOT NULL"),
        ),
        Index(None, "run", "planned_at"),
        Index(
            "phase_attempt_failed_index",
            "run",
            "ended_at",
            sqlite_where=text("failure_class IS NOT NULL"),
            postgresql_where=text("failure_class IS NOT NULL"),
        ),
        Index(
            "phase_attempt_repeated_index",
            "run",
            "planned_at",
            sqlite_where=text("number > 1"),
            postgresql_where=text("number > 1"),
        ),
    ),
):
    """An attempt at a phase: PLANNED -> DISPATCHED -> DONE or FAILED. It is charged if dispatched_at is set.

    seconds: the duration that the driver measured.
    """

    run: Stored[str] = stored_run()
    branch: Stored[int] = stored_key()
    iteration: Stored[int] = stored_key()
    phase: Stored[str] = stored_key()
    number: Stored[int] = stored_key()
    state: Stored[str]
    term: Stored[int]
    planned_at: Stored[int]
    dispatched_at: Stored[int | None]
    ended_at: Stored[int | None]
    failure_class: Stored[str | None]
    reason: Stored[str | None]
    receipt: Stored[Mapping[str, Any] | None]
    seconds: Stored[float | None]
    bytes_to_driver: Stored[int | None]


class Shard(Base):
    """A sealed logical shard of experience; the key allows only one, whichever term produced it."""

    __tablename__ = "shard"

    run: Mapped[str] = run_key()
    branch: Mapped[int] = key_part()
    iteration: Mapped[int] = key_part()
    wave: Mapped[int] = key_part()
    shard: Mapped[int] = key_part()
    term: Mapped[int]
    folder: Mapped[str]
    manifest_sha256: Mapped[str]
    samples: Mapped[int]
    tokens: Mapped[int]
    group_digests: Mapped[bytes]
    sums: Mapped[dict[str, Any]]
    adopted: Mapped[bool]
    recorded_at: Mapped[int]


class Wave(Base):
    """A wave of collect: its plan, recorded before it starts, and its outcome."""

    __tablename__ = "wave"

    run: Mapped[str] = run_key()
    branch: Mapped[int] = key_part()
    iteration: Mapped[int] = key_part()
    wave: Mapped[int] = key_part()
    term: Mapped[int]
    plan: Mapped[dict[str, Any]]
    outcome: Mapped[dict[str, Any] | None]
    recorded_at: Mapped[int]


class Choice(Base):
    """A choice by time, load or environment, recorded before it took effect; the first one under a name stands."""

    __tablename__ = "choice"

    run: Mapped[str] = run_key()
    branch: Mapped[int] = key_part()
    iteration: Mapped[int] = key_part()
    name: Mapped[str] = key_part()
    term: Mapped[int]
    body: Mapped[dict[str, Any]]
    recorded_at: Mapped[int]


class PlacementDecision(Base):
    """A placement decision with its inputs, prediction and reason, and the actual outcome."""

    __tablename__ = "placement_decision"

    run: Mapped[str] = run_key()
    branch: Mapped[int] = key_part()
    iteration: Mapped[int] = key_part()
    seq: Mapped[int] = key_part()
    term: Mapped[int]
    inputs: Mapped[dict[str, Any]]
    decision: Mapped[dict[str, Any]]
    prediction: Mapped[dict[str, Any]]
    reason: Mapped[str]
    outcome: Mapped[dict[str, Any] | None]
    recorded_at: Mapped[int]


class CheckpointRow(TableRow, name="checkpoint"):
    """A published checkpoint.

    term: the term that published the checkpoint.
    run: the run to which it belongs; for a checkpoint that a fork inherited, the parent.
    recorded_at: milliseconds since 1970, always by the ledger's clock.
    """

    run: Stored[str] = stored_run()
    branch: Stored[int] = stored_key()
    iteration: Stored[int] = stored_key()
    term: Stored[int] = stored_key()
    folder: Stored[str]
    manifest_sha256: Stored[str]
    bytes: Stored[int]
    weights_digest: Stored[str]
    seconds: Stored[float]
    state: Stored[str] = stored(default="kept")
    """kept or pruned; a pruned one keeps its row and digest."""
    recorded_at: Stored[int] = stored(default=0, compare=False)

    def is_meant(self, iteration: int | None = None, branch: int | None = None, term: int | None = None) -> bool:
        """Returns True if the checkpoint matches all of the given numbers."""
        given = ((iteration, self.iteration), (branch, self.branch), (term, self.term))
        return all(asked in (None, own) for asked, own in given)


class AliasMoveTable(Base):
    """A move of one of the run's aliases to a checkpoint; an alias points to the target of its newest move.

    seq: number of the link of the audit chain that records the move.
    """

    __tablename__ = "alias_move"
    __table_args__ = (
        ForeignKeyConstraint(
            ["run", "branch", "iteration", "term"],
            ["checkpoint.run", "checkpoint.branch", "checkpoint.iteration", "checkpoint.term"],
            name="alias_move_checkpoint_fk",
        ),
    )

    run: Mapped[str] = run_key()
    number: Mapped[int] = key_part()
    alias: Mapped[str]
    branch: Mapped[int]
    iteration: Mapped[int]
    term: Mapped[int]
    by: Mapped[str]
    why: Mapped[str]
    at: Mapped[int]
    seq: Mapped[int]


class Event(ChainLink, Base):
    """A link of the run's audit chain; its hash covers its contents and the hash of the previous link."""

    __tablename__ = "event"
    __table_args__ = (Index(None, "run", "kind", "seq"),)

    run: Mapped[str] = run_key()
    seq: Mapped[int] = key_part()


class DeletedRun(Base):
    """What remains of a deleted run; its other rows are gone, and its number is never given to another run.

    spec: the newest revision.
    links: the run's audit chain, from its creation to its deletion.
    outside: what the run may have left outside the ledger and its folder.
    cleaned_at: when everything outside the ledger was removed; null while something may be left.
    """

    __tablename__ = "deleted_run"

    run: Mapped[str] = mapped_column(primary_key=True)
    spec_name: Mapped[str]
    number: Mapped[int]
    by: Mapped[str]
    why: Mapped[str]
    created_at: Mapped[int]
    deleted_at: Mapped[int]
    spec: Mapped[dict[str, Any]]
    links: Mapped[list[dict[str, Any]]]
    outside: Mapped[dict[str, Any]]
    cleaned_at: Mapped[int | None]
