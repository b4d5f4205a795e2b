"""Whether the devices of a stretch are GPUs, and the drivers that were started on them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("queue_allocation", sa.Column("gpus", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("queue_allocation", sa.Column("starts", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("queue_allocation", sa.Column("start_term", sa.BigInteger(), nullable=False, server_default="0"))
