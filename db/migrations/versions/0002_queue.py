"""The queue over shared devices: its entries, allocations, scheduler, outages and forecasts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "queue_entry",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("pools", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("devices", sa.BigInteger(), nullable=False),
        sa.Column("checkpoints", sa.Text(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("waited_ms", sa.BigInteger(), nullable=False),
        sa.Column("waiting_since", sa.BigInteger(), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("queue_entry_run_fk")),
        sa.PrimaryKeyConstraint("run", name=op.f("queue_entry_pk")),
    )
    op.create_index("queue_entry_open_index", "queue_entry", ["state"], sqlite_where=sa.text("ended_at IS NULL"), postgresql_where=sa.text("ended_at IS NULL"))
    op.create_table(
        "queue_allocation",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("pools", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("level", sa.BigInteger(), nullable=False),
        sa.Column("backfilled", sa.Boolean(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("lease_term", sa.BigInteger(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("process_start", sa.BigInteger(), nullable=True),
        sa.Column("price", sa.Double(), nullable=True),
        sa.Column("currency", sa.Text(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("stop_asked_at", sa.BigInteger(), nullable=True),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("queue_allocation_run_fk")),
        sa.PrimaryKeyConstraint("run", "number", name=op.f("queue_allocation_pk")),
    )
    op.create_index("queue_allocation_open_index", "queue_allocation", ["pool"], sqlite_where=sa.text("ended_at IS NULL"), postgresql_where=sa.text("ended_at IS NULL"))
    op.create_table(
        "queue_scheduler",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=True),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("process_start", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("queue_scheduler_pk")),
    )
    op.create_table(
        "queue_outage",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("announced_at", sa.BigInteger(), nullable=False),
        sa.Column("lost_at", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("queue_outage_pk")),
    )
    op.create_index("queue_outage_open_index", "queue_outage", ["pool", "device"], unique=True, sqlite_where=sa.text("ended_at IS NULL"), postgresql_where=sa.text("ended_at IS NULL"))
    op.create_table(
        "queue_forecast",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("tenth", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("iteration", sa.BigInteger(), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("ettr", sa.Double(), nullable=False),
        sa.Column("end_at", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("actual_cost", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("queue_forecast_run_fk")),
        sa.PrimaryKeyConstraint("run", "tenth", name=op.f("queue_forecast_pk")),
    )
