"""The tables of what people attach to runs. Times are milliseconds since 1970 (UTC) by the database's clock."""

from __future__ import annotations

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from db.core.base import Base, run_key


class RunNote(Base):
    """What people wrote about a run; the audit chain has every version."""

    __tablename__ = "run_note"

    run: Mapped[str] = run_key()
    text: Mapped[str]
    by: Mapped[str]
    at: Mapped[int]


class RunTag(Base):
    """A tag of a run."""

    __tablename__ = "run_tag"
    __table_args__ = (Index(None, "tag", "run"),)

    run: Mapped[str] = run_key()
    tag: Mapped[str] = mapped_column(primary_key=True)
    by: Mapped[str]
    at: Mapped[int]
