"""The iteration after which a run of the queue stops, such as a trial at its rung."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("queue_entry", sa.Column("until", sa.BigInteger(), nullable=True))
