"""The tables of metrics and of what is delivered to trackers and people. Times are milliseconds since 1970 (UTC) by the
database's clock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from db.core.base import COUNTER, Base, key_part


class MetricSeries(Base):
    """A metric of a run; the many points refer to it by number instead of name.

    metric_class: result or timing.
    """

    __tablename__ = "metric_series"
    __table_args__ = (UniqueConstraint("run", "key"),)

    id: Mapped[int] = mapped_column(COUNTER, primary_key=True)
    run: Mapped[str] = mapped_column(ForeignKey("run.id"))
    key: Mapped[str]
    metric_class: Mapped[str]


class MetricPoint(Base):
    """The value of a metric at one iteration of a branch."""

    __tablename__ = "metric_point"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  (without a rowid, the table takes half the space)

    series: Mapped[int] = mapped_column(ForeignKey("metric_series.id"), primary_key=True)
    branch: Mapped[int] = key_part()
    step: Mapped[int] = key_part()
    value: Mapped[float]


class Outbox(Base):
    """A row to deliver to the tracker or to people.

    lane: the tracker that receives the row, or `people`; each lane is delivered on its own.
    external_id: the receiver's id of what the row has created, or `refused: ` and why it has refused the row for good.
    logged_at: timestamp of the points in the tracker, so that a point that is sent twice remains a single point.
    """

    __tablename__ = "metric_outbox"
    __table_args__ = (
        Index(
            "metric_outbox_pending_index",
            "run",
            "seq",
            sqlite_where=text("delivered_at IS NULL"),
            postgresql_where=text("delivered_at IS NULL"),
        ),
    )

    seq: Mapped[int] = mapped_column(COUNTER, primary_key=True)
    id: Mapped[str] = mapped_column(unique=True)
    run: Mapped[str] = mapped_column(ForeignKey("run.id"))
    lane: Mapped[str]
    kind: Mapped[str]
    payload: Mapped[dict[str, Any]]
    logged_at: Mapped[int]
    claims: Mapped[int]
    claimed_term: Mapped[int | None]
    delivered_at: Mapped[int | None]
    external_id: Mapped[str | None]
