"""Aliases of snapshots: every move of one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alias_move",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), nullable=False),
        sa.Column("iteration", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("alias_move_run_fk")),
        sa.ForeignKeyConstraint(
            ["run", "branch", "iteration", "epoch"],
            ["snapshot.run", "snapshot.branch", "snapshot.iteration", "snapshot.epoch"],
            name=op.f("alias_move_snapshot_fk"),
        ),
        sa.PrimaryKeyConstraint("run", "number", name=op.f("alias_move_pk")),
    )
