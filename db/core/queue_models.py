"""The tables of the queue over shared devices. Times are milliseconds since 1970 (UTC) by the database's clock."""

from __future__ import annotations

from sqlalchemy import Index, text
from sqlalchemy.orm import Mapped, mapped_column

from db.core.base import COUNTER, Base, OlderLease, key_part


class QueueScheduler(Base, OlderLease):
    """Keeps schedulers of older versions from giving devices to runs; the lease `queue` is that of this version."""

    __tablename__ = "queue_scheduler"

    id: Mapped[int] = key_part()


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
