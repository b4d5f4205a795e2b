"""The tables of the queue over shared devices. Times are milliseconds since 1970 (UTC) by the database's clock."""

from __future__ import annotations

from sqlalchemy import Index, false, text
from sqlalchemy.orm import Mapped, mapped_column

from db.core.base import COUNTER, Base, key_part, run_key


class QueueEntry(Base):
    """A run that was submitted to the queue.

    seq: position by submission.
    pools: names, separated by commas, the preferred one first.
    checkpoints: `spec` or `auto`: whose interval it uses.
    wanted: run, hold or remove: what people want of it.
    state: waiting, running (it holds devices) or ended.
    waited_ms: time that it has waited for devices, until waiting_since.
    failures: starts in a row that came to nothing.
    """

    __tablename__ = "queue_entry"
    __table_args__ = (
        Index(
            "queue_entry_open_index",
            "state",
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )

    run: Mapped[str] = run_key()
    seq: Mapped[int]
    pools: Mapped[str]
    owner: Mapped[str]
    project: Mapped[str]
    priority: Mapped[int]
    devices: Mapped[int]
    checkpoints: Mapped[str]
    wanted: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str]
    submitted_at: Mapped[int]
    waited_ms: Mapped[int]
    waiting_since: Mapped[int | None]
    not_before: Mapped[int | None]
    failures: Mapped[int]
    ended_at: Mapped[int | None]
    outcome: Mapped[str | None]


class QueueAllocation(Base):
    """A stretch for which a run holds devices of a pool, until ended_at.

    devices: their numbers, separated by commas.
    pools: those that the run could use.
    lease_term: term of the run's lease before the start; a driver that took it has a newer one.
    pid: the driver's process, once it is started.
    gpus: True if the devices are GPUs of this machine, whose numbers mean the same in all pools.
    starts: drivers started in a row since a session began; start_term is the term of the run's newest session then.
    price: of a device for an hour, at the start.
    outcome: how it ended.
    """

    __tablename__ = "queue_allocation"
    __table_args__ = (
        Index(
            "queue_allocation_open_index",
            "pool",
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )

    run: Mapped[str] = run_key()
    number: Mapped[int] = key_part()
    pool: Mapped[str]
    pools: Mapped[str]
    owner: Mapped[str]
    project: Mapped[str]
    priority: Mapped[int]
    devices: Mapped[str]
    level: Mapped[int]
    backfilled: Mapped[bool]
    term: Mapped[int]
    lease_term: Mapped[int]
    pid: Mapped[int | None]
    process_start: Mapped[int | None]
    price: Mapped[float | None]
    currency: Mapped[str | None]
    started_at: Mapped[int]
    stop_asked_at: Mapped[int | None]
    stop_reason: Mapped[str | None]
    ended_at: Mapped[int | None]
    outcome: Mapped[str | None]
    gpus: Mapped[bool] = mapped_column(server_default=false())
    starts: Mapped[int] = mapped_column(server_default="0")
    start_term: Mapped[int] = mapped_column(server_default="0")


class QueueScheduler(Base):
    """The right to give devices to runs; a single row. While holder is null, it is free."""

    __tablename__ = "queue_scheduler"

    id: Mapped[int] = key_part()
    term: Mapped[int]
    holder: Mapped[str | None]
    host: Mapped[str | None]
    boot_id: Mapped[str | None]
    pid: Mapped[int | None]
    process_start: Mapped[int | None]
    expires_at: Mapped[int]


class QueueOutage(Base):
    """A device that cannot be used: reclaimed, or broken.

    lost_at: when it is gone; before, a run may use the time to stop.
    """

    __tablename__ = "queue_outage"
    __table_args__ = (
        Index(
            "queue_outage_open_index",
            "pool",
            "device",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(COUNTER, primary_key=True)
    pool: Mapped[str]
    device: Mapped[int]
    announced_at: Mapped[int]
    lost_at: Mapped[int]
    by: Mapped[str]
    ended_at: Mapped[int | None]


class QueueForecast(Base):
    """A prediction of a run's end and cost, made after a tenth, two tenths, ... of its iterations, and how it turned out.

    cost: of the whole run, in the currency of its devices.
    end_at, ended_at: predicted and actual end.
    """

    __tablename__ = "queue_forecast"

    run: Mapped[str] = run_key()
    tenth: Mapped[int] = key_part()
    iteration: Mapped[int]
    made_at: Mapped[int]
    ettr: Mapped[float]
    end_at: Mapped[int]
    cost: Mapped[float | None]
    ended_at: Mapped[int | None]
    actual_cost: Mapped[float | None]
