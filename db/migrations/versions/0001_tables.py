"""The ledger's tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("spec_name", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.Column("desired_state", sa.Text(), nullable=False),
        sa.Column("target_iterations", sa.BigInteger(), nullable=False),
        sa.Column("current_branch", sa.BigInteger(), nullable=False),
        sa.Column("iteration", sa.BigInteger(), nullable=False),
        sa.Column("committed_at", sa.BigInteger(), nullable=True),
        sa.Column("stop_at", sa.BigInteger(), nullable=True),
        sa.Column("mlflow_run_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("event_seq", sa.BigInteger(), nullable=False),
        sa.Column("event_hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("run_pk")),
        sa.UniqueConstraint("spec_name", "number", name=op.f("run_spec_name_number_unique")),
    )
    op.create_table(
        "deleted_run",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("spec_name", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("links", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("outside", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("cleaned_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("run", name=op.f("deleted_run_pk")),
    )
    op.create_table(
        "branch",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("parent_run", sa.Text(), nullable=True),
        sa.Column("parent_branch", sa.BigInteger(), nullable=True),
        sa.Column("parent_iteration", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["parent_run"], ["run.id"], name=op.f("branch_parent_run_fk")),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("branch_run_fk")),
        sa.PrimaryKeyConstraint("run", "number", name=op.f("branch_pk")),
    )
    op.create_table(
        "control_state",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("iteration", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("control_state_run_fk")),
        sa.PrimaryKeyConstraint("run", "branch", "iteration", name=op.f("control_state_pk")),
    )
    op.create_table(
        "event",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("prev_hash", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("event_run_fk")),
        sa.PrimaryKeyConstraint("run", "seq", name=op.f("event_pk")),
    )
    op.create_table(
        "iteration",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("iteration", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("experience_digest", sa.Text(), nullable=True),
        sa.Column("weights_digest", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("committed_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("iteration_run_fk")),
        sa.PrimaryKeyConstraint("run", "branch", "iteration", name=op.f("iteration_pk")),
    )
    op.create_table(
        "lease",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=True),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("process_start", sa.BigInteger(), nullable=True),
        sa.Column("ttl_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("lease_run_fk")),
        sa.PrimaryKeyConstraint("run", name=op.f("lease_pk")),
    )
    op.create_table(
        "metric_outbox",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("logged_at", sa.BigInteger(), nullable=False),
        sa.Column("claims", sa.BigInteger(), nullable=False),
        sa.Column("claimed_term", sa.BigInteger(), nullable=True),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("external_id", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("metric_outbox_run_fk")),
        sa.PrimaryKeyConstraint("seq", name=op.f("metric_outbox_pk")),
        sa.UniqueConstraint("id", name=op.f("metric_outbox_id_unique")),
    )
    op.create_index(
        "metric_outbox_pending_index",
        "metric_outbox",
        ["run", "seq"],
        unique=False,
        sqlite_where=sa.text("delivered_at IS NULL"),
        postgresql_where=sa.text("delivered_at IS NULL"),
    )
    op.create_table(
        "metric_series",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("metric_class", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("metric_series_run_fk")),
        sa.PrimaryKeyConstraint("id", name=op.f("metric_series_pk")),
        sa.UniqueConstraint("run", "key", name=op.f("metric_series_run_key_unique")),
    )
    op.create_table(
        "phase_attempt",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("iteration", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("phase", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("planned_at", sa.BigInteger(), nullable=False),
        sa.Column("dispatched_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("failure_class", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("receipt", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("bytes_to_driver", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("phase_attempt_run_fk")),
        sa.PrimaryKeyConstraint("run", "branch", "iteration", "phase", "number", name=op.f("phase_attempt_pk")),
    )
    op.create_index(
        "phase_attempt_open_index",
        "phase_attempt",
        ["run"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "placement_decision",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("iteration", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("inputs", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("decision", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("prediction", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("outcome", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("placement_decision_run_fk")),
        sa.PrimaryKeyConstraint("run", "branch", "iteration", "seq", name=op.f("placement_decision_pk")),
    )
    op.create_table(
        "driver_session",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("flow_run_id", sa.Text(), nullable=False),
        sa.Column("flow_run_name", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("session_run_fk")),
        sa.PrimaryKeyConstraint("run", "term", name=op.f("session_pk")),
    )
    op.create_table(
        "shard",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("iteration", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("wave", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("shard", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("manifest_sha256", sa.Text(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("group_digests", sa.LargeBinary(), nullable=False),
        sa.Column("sums", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("adopted", sa.Boolean(), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("shard_run_fk")),
        sa.PrimaryKeyConstraint("run", "branch", "iteration", "wave", "shard", name=op.f("shard_pk")),
    )
    op.create_table(
        "checkpoint",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("iteration", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("manifest_sha256", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("weights_digest", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("checkpoint_run_fk")),
        sa.PrimaryKeyConstraint("run", "branch", "iteration", "term", name=op.f("checkpoint_pk")),
    )
    op.create_table(
        "spec_revision",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("spec_revision_run_fk")),
        sa.PrimaryKeyConstraint("run", "revision", name=op.f("spec_revision_pk")),
    )
    op.create_table(
        "wave",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("iteration", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("wave", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("plan", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("outcome", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("wave_run_fk")),
        sa.PrimaryKeyConstraint("run", "branch", "iteration", "wave", name=op.f("wave_pk")),
    )
    op.create_table(
        "metric_point",
        sa.Column("series", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("branch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["series"], ["metric_series.id"], name=op.f("metric_point_series_fk")),
        sa.PrimaryKeyConstraint("series", "branch", "step", name=op.f("metric_point_pk")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "choice",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("iteration", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("choice_run_fk")),
        sa.PrimaryKeyConstraint("run", "branch", "iteration", "name", name=op.f("choice_pk")),
    )
    op.create_index(
        "phase_attempt_ended_index",
        "phase_attempt",
        ["run", "phase", "ended_at"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NOT NULL"),
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )
    op.create_table(
        "alias_move",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("branch", sa.BigInteger(), nullable=False),
        sa.Column("iteration", sa.BigInteger(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("alias_move_run_fk")),
        sa.ForeignKeyConstraint(
            ["run", "branch", "iteration", "term"],
            ["checkpoint.run", "checkpoint.branch", "checkpoint.iteration", "checkpoint.term"],
            name=op.f("alias_move_checkpoint_fk"),
        ),
        sa.PrimaryKeyConstraint("run", "number", name=op.f("alias_move_pk")),
    )
    op.create_table(
        "run_note",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("run_note_run_fk")),
        sa.PrimaryKeyConstraint("run", name=op.f("run_note_pk")),
    )
    op.create_table(
        "run_tag",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("run_tag_run_fk")),
        sa.PrimaryKeyConstraint("run", "tag", name=op.f("run_tag_pk")),
    )
    op.create_index("run_tag_tag_run_index", "run_tag", ["tag", "run"], unique=False)
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
