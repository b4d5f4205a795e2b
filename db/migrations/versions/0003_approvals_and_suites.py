"""Approvals: questions to people and what they decided; evaluations of suites."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "approval",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("deciders", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("deadline", sa.BigInteger(), nullable=True),
        sa.Column("default_decision", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("via", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("approval_run_fk")),
        sa.PrimaryKeyConstraint("id", name=op.f("approval_pk")),
        sa.UniqueConstraint("subject", "key", name=op.f("approval_subject_key_unique")),
    )
    op.create_index(
        "approval_open_index",
        "approval",
        ["asked_at"],
        unique=False,
        sqlite_where=sa.text("decision IS NULL"),
        postgresql_where=sa.text("decision IS NULL"),
    )
    op.create_index("approval_run_index", "approval", ["run"], unique=False)
    op.create_table(
        "suite_evaluation",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("suite", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("suite_spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("branch", sa.BigInteger(), nullable=False),
        sa.Column("iteration", sa.BigInteger(), nullable=False),
        sa.Column("weights_digest", sa.Text(), nullable=False),
        sa.Column("figures", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("results", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("suite_evaluation_run_fk")),
        sa.PrimaryKeyConstraint("run", "number", name=op.f("suite_evaluation_pk")),
        sa.UniqueConstraint("run", "digest", "weights_digest", name=op.f("suite_evaluation_run_digest_weights_digest_unique")),
    )
