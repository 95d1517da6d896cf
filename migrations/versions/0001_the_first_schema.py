"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the first schema."""
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("name", name=op.f("uq_runs_name")),
    )
    op.create_table(
        "launches",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("launch_order", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("layout", sa.JSON(), nullable=False),
        sa.Column("steps_per_epoch", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_launches_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_launches")),
        sa.UniqueConstraint("run_id", "launch_order", name=op.f("uq_launches_run_id_launch_order")),
    )
    op.create_table(
        "pins",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("global_step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_pins_run_id")),
        sa.PrimaryKeyConstraint("run_id", "global_step", name=op.f("pk_pins")),
    )
    op.create_table(
        "endings",
        sa.Column("launch_id", sa.String(length=200), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("global_step", sa.BigInteger(), nullable=False),
        sa.Column("optimizer_step", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_endings_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", "rank", name=op.f("pk_endings")),
    )
    op.create_table(
        "resolutions",
        sa.Column("launch_id", sa.String(length=200), nullable=False),
        sa.Column("parent_launch_id", sa.String(length=200), nullable=True),
        sa.Column("parent_step", sa.BigInteger(), nullable=True),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_resolutions_launch_id")),
        sa.ForeignKeyConstraint(["parent_launch_id"], ["launches.id"], name=op.f("fk_resolutions_parent_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", name=op.f("pk_resolutions")),
    )
    op.create_table(
        "saves",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("launch_id", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("global_step", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_saves_launch_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_saves")),
    )
    op.create_index(op.f("ix_saves_launch_id_global_step"), "saves", ["launch_id", "global_step"], unique=False)
    op.create_table(
        "sources",
        sa.Column("launch_id", sa.String(length=200), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("breakpoint_prefix", sa.Text(), nullable=False),
        sa.Column("breakpoints_before", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_sources_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", "rank", "directory", "prefix", name=op.f("pk_sources")),
    )
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
        sa.Column("problem", sa.String(length=32), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["save_id"], ["saves.id"], name=op.f("fk_checkpoints_save_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
    )
    op.create_index(op.f("ix_checkpoints_path"), "checkpoints", ["path"], unique=False)
    op.create_index(op.f("ix_checkpoints_save_id"), "checkpoints", ["save_id"], unique=False)
