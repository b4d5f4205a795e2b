"""When everything of a run happened: what the accounts of its wall time are made from. Reads only.

Times are milliseconds since 1970. Of a long run it reads the few columns that tell times, and of its receipts and shards only
those that tell what a failure cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from sqlalchemy import Connection, and_, case, exists, null, select
from sqlalchemy.orm import aliased

from db.ancestry import Stretch, ancestry
from db.errors import RunNotFound
from db.models import Event, Lease, PhaseAttempt, Segment, Shard
from db.rows import rows_of

LEASE_TAKEN, LEASE_RELEASED = "lease_taken", "lease_released"


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """One driver's stretch; outcome `lost` where its driver was gone when the next one came."""

    epoch: int
    started_at: int
    ended_at: int | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """An epoch of the lease. released_at: none where it was lost or is held. renewed_at: its holder's last sign of life, where
    that is known.
    """

    epoch: int
    taken_at: int
    released_at: int | None
    renewed_at: int | None


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """A try at a phase. receipt: of `recover` alone."""

    branch: int
    iteration: int
    phase: str
    wave: int
    number: int
    state: str
    epoch: int
    planned_at: int
    dispatched_at: int | None
    ended_at: int | None
    failure_class: str | None
    reason: str | None
    receipt: Mapping[str, Any] | None

    @property
    def key(self) -> tuple[int, int, str, int, int]:
        """What tells it from all other attempts of the run."""
        return self.branch, self.iteration, self.phase, self.wave, self.number


@dataclass(frozen=True, slots=True)
class SealedTimes:
    """A sealed shard of an iteration whose `collect` failed at least once."""

    branch: int
    iteration: int
    recorded_at: int


@dataclass(frozen=True, slots=True)
class RunHistory:
    """All times of one run, on every branch; each tuple in the order of time. line: the current branch's, oldest first."""

    run: str
    line: tuple[Stretch, ...]
    segments: tuple[SegmentTimes, ...]
    leases: tuple[LeaseTimes, ...]
    attempts: tuple[AttemptTimes, ...]
    sealed: tuple[SealedTimes, ...]


def read_history(connection: Connection, run: str) -> RunHistory:
    """The history of a run, by its id. Raises `RunNotFound`."""
    receipt = case((PhaseAttempt.phase == "recover", PhaseAttempt.receipt), else_=null()).label("receipt")
    return RunHistory(
        run=run,
        line=tuple(ancestry(connection, run)),
        segments=rows_of(connection, Segment, SegmentTimes, run, Segment.epoch),
        leases=read_leases(connection, run),
        attempts=rows_of(connection, PhaseAttempt, AttemptTimes, run, PhaseAttempt.planned_at, receipt=receipt),
        sealed=_sealed(connection, run),
    )


def read_leases(connection: Connection, run: str) -> tuple[LeaseTimes, ...]:
    """The epochs of a run's lease, by the audit chain; the newest one's renewal by the lease itself.

    Raises `RunNotFound`.
    """
    events = connection.execute(
        select(Event.kind, Event.at, Event.body)
        .where(Event.run == run, Event.kind.in_((LEASE_TAKEN, LEASE_RELEASED)))
        .order_by(Event.seq)
    ).all()
    taken = {event.body["epoch"]: event.at for event in events if event.kind == LEASE_TAKEN}
    released = {event.body["epoch"]: event.at for event in events if event.kind == LEASE_RELEASED}
    # A taker finds the renewal of whoever held the lease before it.
    renewed = {event.body["epoch"] - 1: event.body.get("renewed_at") for event in events if event.kind == LEASE_TAKEN}
    lease = connection.execute(select(*Lease.__table__.columns).where(Lease.run == run)).one_or_none()
    if lease is None:
        raise RunNotFound(f"there is no run {run!r} in this ledger")
    if lease.holder is not None:
        renewed[lease.epoch] = lease.expires_at - lease.ttl_ms
    return tuple(LeaseTimes(epoch, at, released.get(epoch), renewed.get(epoch)) for epoch, at in taken.items())


def _sealed(connection: Connection, run: str) -> tuple[SealedTimes, ...]:
    failed = aliased(PhaseAttempt)
    interrupted = exists().where(
        and_(
            failed.run == Shard.run,
            failed.branch == Shard.branch,
            failed.iteration == Shard.iteration,
            failed.phase == "collect",
            failed.state == "FAILED",
        )
    )
    columns = [Shard.__table__.columns[name] for name in get_type_hints(SealedTimes)]
    rows = connection.execute(select(*columns).where(Shard.run == run, interrupted).order_by(Shard.recorded_at))
    return tuple(SealedTimes(**row._mapping) for row in rows)
