"""What finds a run's events by kind, and its newest, failed and repeated attempts, without walking through all of a long run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("event_run_kind_seq_index", "event", ["run", "kind", "seq"], unique=False)
    op.create_index("phase_attempt_run_planned_at_index", "phase_attempt", ["run", "planned_at"], unique=False)
    op.create_index(
        "phase_attempt_failed_index",
        "phase_attempt",
        ["run", "ended_at"],
        unique=False,
        sqlite_where=sa.text("failure_class IS NOT NULL"),
        postgresql_where=sa.text("failure_class IS NOT NULL"),
    )
    op.create_index(
        "phase_attempt_repeated_index",
        "phase_attempt",
        ["run", "planned_at"],
        unique=False,
        sqlite_where=sa.text("number > 1"),
        postgresql_where=sa.text("number > 1"),
    )
