"""Choices, the time by which a run has to stop, and the newest attempts at a phase."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "choice",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("iteration", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("choice_run_fk")),
        sa.PrimaryKeyConstraint("run", "branch", "iteration", "name", name=op.f("choice_pk")),
    )
    op.add_column("run", sa.Column("stop_at", sa.BigInteger(), nullable=True))
    op.create_index(
        "phase_attempt_ended_index",
        "phase_attempt",
        ["run", "phase", "ended_at"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NOT NULL"),
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )
