"""The schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("name", name=op.f("uq_runs_name")),
    )
    op.create_table(
        "strategies",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_strategies")),
    )
    op.create_table(
        "tiers",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("declared", sa.Boolean(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tiers")),
    )
    op.create_table(
        "notifications",
        sa.Column("receiver", sa.String(length=32), nullable=False),
        sa.Column("fact", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.String(length=32), nullable=False),
        sa.Column("held_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("receiver", "fact", name=op.f("pk_notifications")),
    )
    op.create_table(
        "collections",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("purge_after", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_collections_run_id")),
        sa.PrimaryKeyConstraint("run_id", "id", name=op.f("pk_collections")),
    )
    op.create_table(
        "gc_locks",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=300), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_gc_locks_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_gc_locks")),
    )
    op.create_table(
        "journals",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("read_to", sa.BigInteger(), nullable=False),
        sa.Column("by_summary", sa.Boolean(), nullable=False),
        sa.Column("is_copy", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_journals_run_id")),
        sa.PrimaryKeyConstraint("run_id", "path", name=op.f("pk_journals")),
    )
    op.create_index(op.f("ix_journals_path"), "journals", ["path"], unique=False)
    op.create_table(
        "unwritten",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("home", sa.JSON(), nullable=False),
        sa.Column("line", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_unwritten_run_id")),
        sa.PrimaryKeyConstraint("run_id", "id", name=op.f("pk_unwritten")),
    )
    op.create_table(
        "launches",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("launch_order", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("layout", sa.JSON(), nullable=False),
        sa.Column("steps_per_epoch", sa.Integer(), nullable=True),
        sa.Column("batch_size", sa.Integer(), nullable=True),
        sa.Column("shards", sa.Integer(), nullable=True),
        sa.Column("data_version", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("owner", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_launches_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_launches")),
    )
    op.create_index(op.f("ix_launches_run_id_launch_order"), "launches", ["run_id", "launch_order"], unique=False)
    op.create_table(
        "unplaced",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("mtime_ns", sa.BigInteger(), nullable=False),
        sa.Column("best_guess", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("remedy", sa.Text(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_unplaced_run_id")),
        sa.PrimaryKeyConstraint("run_id", "path", name=op.f("pk_unplaced")),
    )
    op.create_table(
        "pins",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("global_step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_pins_run_id")),
        sa.PrimaryKeyConstraint("run_id", "global_step", name=op.f("pk_pins")),
    )
    op.create_table(
        "policies",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rules", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_policies_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_policies")),
    )
    op.create_table(
        "renamed",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_renamed_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_renamed")),
    )
    op.create_index(op.f("ix_renamed_name"), "renamed", ["name"], unique=False)
    op.create_table(
        "forgotten",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("forgotten", sa.Boolean(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_forgotten_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_forgotten")),
    )
    op.create_table(
        "tags",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("global_step", sa.BigInteger(), nullable=True),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_tags_run_id")),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_tags")),
    )
    op.create_table(
        "trash",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("collection_id", sa.String(length=32), nullable=False),
        sa.Column("checkpoint_id", sa.String(length=32), nullable=True),
        sa.Column("of_version", sa.String(length=64), nullable=False),
        sa.Column("root", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("mtime_ns", sa.BigInteger(), nullable=False),
        sa.Column("wanted", sa.String(length=16), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_trash_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trash")),
    )
    op.create_index(
        op.f("ix_trash_checkpoint_id_run_id_settled_wanted"),
        "trash",
        ["checkpoint_id", "run_id", "settled", "wanted"],
        unique=False,
    )
    op.create_index(op.f("ix_trash_collection_id"), "trash", ["collection_id"], unique=False)
    op.create_index(op.f("ix_trash_run_id_settled_wanted"), "trash", ["run_id", "settled", "wanted"], unique=False)
    op.create_table(
        "endings",
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("global_step", sa.BigInteger(), nullable=False),
        sa.Column("optimizer_step", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("quarantine", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_endings_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", "rank", name=op.f("pk_endings")),
    )
    op.create_table(
        "launch_strategies",
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["strategies.digest"], name=op.f("fk_launch_strategies_digest")),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_launch_strategies_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", "rank", "digest", name=op.f("pk_launch_strategies")),
    )
    op.create_table(
        "exit_requests",
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_exit_requests_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", name=op.f("pk_exit_requests")),
    )
    op.create_table(
        "views",
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("seen", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_views_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", "rank", name=op.f("pk_views")),
    )
    op.create_table(
        "leases",
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("process", sa.String(length=300), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_leases_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", name=op.f("pk_leases")),
    )
    op.create_table(
        "outcomes",
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("checkpoint_id", sa.String(length=32), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_outcomes_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", "rank", name=op.f("pk_outcomes")),
    )
    op.create_index(op.f("ix_outcomes_launch_id_outcome"), "outcomes", ["launch_id", "outcome"], unique=False)
    op.create_table(
        "resolutions",
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("parent_launch_id", sa.String(length=32), nullable=True),
        sa.Column("parent_step", sa.BigInteger(), nullable=True),
        sa.Column("branched", sa.Boolean(), nullable=False),
        sa.Column("start_step", sa.BigInteger(), nullable=True),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("passed", sa.JSON(), nullable=False),
        sa.Column("initial", sa.JSON(), nullable=True),
        sa.Column("initial_launch_id", sa.String(length=32), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_resolutions_launch_id")),
        sa.ForeignKeyConstraint(["parent_launch_id"], ["launches.id"], name=op.f("fk_resolutions_parent_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", name=op.f("pk_resolutions")),
    )
    op.create_index(op.f("ix_resolutions_initial_launch_id"), "resolutions", ["initial_launch_id"], unique=False)
    op.create_table(
        "saves",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("global_step", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_saves_launch_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_saves")),
    )
    op.create_index(op.f("ix_saves_launch_id_global_step"), "saves", ["launch_id", "global_step"], unique=False)
    op.create_table(
        "copies",
        sa.Column("checkpoint_id", sa.String(length=32), nullable=False),
        sa.Column("tier_id", sa.String(length=32), nullable=False),
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.Column("beside", sa.JSON(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_copies_launch_id")),
        sa.ForeignKeyConstraint(["tier_id"], ["tiers.id"], name=op.f("fk_copies_tier_id")),
        sa.PrimaryKeyConstraint("checkpoint_id", "tier_id", name=op.f("pk_copies")),
    )
    op.create_index(op.f("ix_copies_launch_id"), "copies", ["launch_id"], unique=False)
    op.create_index(op.f("ix_copies_tier_id_state"), "copies", ["tier_id", "state"], unique=False)
    op.create_table(
        "copying",
        sa.Column("object_id", sa.String(length=32), nullable=False),
        sa.Column("tier_id", sa.String(length=32), nullable=False),
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_copying_launch_id")),
        sa.PrimaryKeyConstraint("object_id", "tier_id", name=op.f("pk_copying")),
    )
    op.create_table(
        "sources",
        sa.Column("launch_id", sa.String(length=32), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("breakpoint_prefix", sa.Text(), nullable=False),
        sa.Column("names_before", sa.JSON(), nullable=False),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("content", sa.String(length=16), nullable=True),
        sa.Column("directory_id", sa.String(length=16), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_sources_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", "rank", "directory", "kind", "prefix", name=op.f("pk_sources")),
    )
    op.create_index(op.f("ix_sources_directory"), "sources", ["directory"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("save_id", sa.String(length=32), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("optimizer_step", sa.BigInteger(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("step_in_epoch", sa.Integer(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.Column("mtime_ns", sa.BigInteger(), nullable=True),
        sa.Column("format", sa.String(length=16), nullable=False),
        sa.Column("content", sa.String(length=16), nullable=False),
        sa.Column("strategy_file", sa.Text(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reported", sa.String(length=16), nullable=False),
        sa.Column("problem", sa.String(length=32), nullable=True),
        sa.Column("quarantine", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=True),
        sa.Column("grade", sa.String(length=16), nullable=True),
        sa.Column("doubt", sa.Text(), nullable=True),
        sa.Column("pause", sa.Double(), nullable=True),
        sa.Column("written_after", sa.Double(), nullable=True),
        sa.Column("step_took", sa.Double(), nullable=True),
        sa.Column("directory_id", sa.String(length=16), nullable=True),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["save_id"], ["saves.id"], name=op.f("fk_checkpoints_save_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
    )
    op.create_index(op.f("ix_checkpoints_mtime_ns"), "checkpoints", ["mtime_ns"], unique=False)
    op.create_index(op.f("ix_checkpoints_path_created_at"), "checkpoints", ["path", "created_at"], unique=False)
    op.create_index(op.f("ix_checkpoints_save_id_state"), "checkpoints", ["save_id", "state"], unique=False)
    # ### end Alembic commands ###
