"""The table of evaluations of suites. Times are milliseconds since 1970 (UTC) by the database's clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import UniqueConstraint
from sqlalchemy.orm import Mapped

from db.core.base import Base, key_part, run_key


class SuiteEvaluation(Base):
    """An evaluation of a checkpoint on a suite; it never changes, and the same weights are evaluated once a suite.

    digest: identifies the tasks, and how they are answered and scored.
    suite_spec: the suite's spec.
    figures: figures over all tasks and by set.
    results: the result of each task.
    seq: number of the link of the audit chain that records it.
    """

    __tablename__ = "suite_evaluation"
    __table_args__ = (UniqueConstraint("run", "digest", "weights_digest"),)

    run: Mapped[str] = run_key()
    number: Mapped[int] = key_part()
    suite: Mapped[str]
    digest: Mapped[str]
    suite_spec: Mapped[dict[str, Any]]
    branch: Mapped[int]
    iteration: Mapped[int]
    weights_digest: Mapped[str]
    figures: Mapped[dict[str, Any]]
    results: Mapped[list[dict[str, Any]]]
    by: Mapped[str]
    seconds: Mapped[float]
    at: Mapped[int]
    seq: Mapped[int]
