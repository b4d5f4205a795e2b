"""Triggers of pipelines: which pipelines are deployed, and what their triggers have seen."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pipeline_deployment",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pipeline_deployment_pk")),
    )
    op.create_table(
        "pipeline_trigger",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("pipeline", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["name"], ["pipeline_deployment.name"], name=op.f("pipeline_trigger_name_fk")),
        sa.ForeignKeyConstraint(["pipeline"], ["pipeline.id"], name=op.f("pipeline_trigger_pipeline_fk")),
        sa.PrimaryKeyConstraint("name", "trigger", "number", name=op.f("pipeline_trigger_pk")),
        sa.UniqueConstraint("name", "trigger", "content", name=op.f("pipeline_trigger_name_trigger_content_unique")),
    )
