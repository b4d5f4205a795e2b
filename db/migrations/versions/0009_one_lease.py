"""One table of leases: of runs, pipelines, sweeps, soups, the queue and the home."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

HOLDER = "holder, host, boot_id, pid, process_start"
OLDER = "'a newer version of YATT', '', '', 0, 0, 4503599627370496"
"""Who holds the leases of older versions for ever, as in `db.core.base.OlderLease`."""


def upgrade() -> None:
    """Lets the table of runs' leases have other subjects, and moves the leases of pipelines and the scheduler to it.

    A driver that is at work goes on: it finds the row of its run by the run. Pipelines and the scheduler of an older version
    are shut out: their terms end, and their leases are held for ever.
    """
    op.add_column("lease", sa.Column("subject", sa.Text(), nullable=True))
    op.execute("UPDATE lease SET subject = 'run/' || run")
    with op.batch_alter_table("lease") as lease:
        lease.drop_constraint("lease_pk", type_="primary")
        lease.alter_column("subject", nullable=False)
        lease.create_primary_key("lease_pk", ["subject"])
        lease.alter_column("run", nullable=True)
        lease.create_unique_constraint("lease_run_unique", ["run"])
    columns = f"subject, term, {HOLDER}, ttl_ms, expires_at"
    op.execute(
        f"INSERT INTO lease ({columns}) SELECT 'pipeline/' || id, term, {HOLDER}, 30000, expires_at FROM pipeline"
    )
    op.execute(f"INSERT INTO lease ({columns}) SELECT 'queue', term, {HOLDER}, 15000, expires_at FROM queue_scheduler")
    for table in ("pipeline", "queue_scheduler"):
        names = [*HOLDER.split(", "), "expires_at"]
        held = ", ".join(f"{name} = {value}" for name, value in zip(names, OLDER.split(", "), strict=True))
        op.execute(f"UPDATE {table} SET term = term + 1, {held}")
    op.execute(
        f"INSERT INTO queue_scheduler (id, term, {HOLDER}, expires_at) SELECT 1, 0, {OLDER} "
        "WHERE EXISTS (SELECT 1 FROM run) AND NOT EXISTS (SELECT 1 FROM queue_scheduler)"
    )
