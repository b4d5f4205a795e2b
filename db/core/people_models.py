"""The tables of what people attach to runs and decide about them.

Times are milliseconds since 1970 (UTC) by the database's clock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from db.core.base import COUNTER, Base, run_key


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


class ApprovalTable(Base):
    """A question to people: once per subject and key. It is open while decision is null, and never changes after it.

    subject: what waits: a run's id, or the name of something else, such as a pipeline's.
    run: the run whose audit chain has the question and the decision; null if there is none.
    deciders: the names and roles that may decide.
    default_decision: what the deadline decides.
    via: through what the decision came: cli, dashboard, api, link, deadline or driver.
    """

    __tablename__ = "approval"
    __table_args__ = (
        UniqueConstraint("subject", "key"),
        Index(
            "approval_open_index",
            "asked_at",
            sqlite_where=text("decision IS NULL"),
            postgresql_where=text("decision IS NULL"),
        ),
        Index(None, "run"),
    )

    id: Mapped[int] = mapped_column(COUNTER, primary_key=True)
    subject: Mapped[str]
    key: Mapped[str]
    run: Mapped[str | None] = mapped_column(ForeignKey("run.id"))
    kind: Mapped[str]
    question: Mapped[str]
    evidence: Mapped[dict[str, Any]]
    deciders: Mapped[dict[str, Any]]
    asked_at: Mapped[int]
    deadline: Mapped[int | None]
    default_decision: Mapped[str]
    decision: Mapped[str | None]
    decided_by: Mapped[str | None]
    via: Mapped[str | None]
    reason: Mapped[str | None]
    decided_at: Mapped[int | None]
