"""Retention: tags, policies, leases, and the trash."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing that was there before changes."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "tags",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("global_step", sa.BigInteger(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_tags_run_id")),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_tags")),
    )
    op.create_table(
        "policies",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rules", sa.JSON(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_policies_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_policies")),
    )
    op.create_table(
        "leases",
        sa.Column("launch_id", sa.String(length=200), nullable=False),
        sa.Column("expires_at", moment, nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_leases_launch_id")),
        sa.PrimaryKeyConstraint("launch_id", name=op.f("pk_leases")),
    )
    op.create_table(
        "gc_locks",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=300), nullable=False),
        sa.Column("expires_at", moment, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_gc_locks_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_gc_locks")),
    )
    op.create_table(
        "collections",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("purge_after", moment, nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_collections_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_collections")),
    )
    op.create_index(op.f("ix_collections_run_id"), "collections", ["run_id"], unique=False)
    op.create_table(
        "trash",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("collection_id", sa.String(length=32), nullable=False),
        sa.Column("checkpoint_id", sa.String(length=32), nullable=True),
        sa.Column("root", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("mtime_ns", sa.BigInteger(), nullable=False),
        sa.Column("before", sa.String(length=16), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["collection_id"], ["collections.id"], name=op.f("fk_trash_collection_id")),
        sa.ForeignKeyConstraint(["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_trash_checkpoint_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trash")),
    )
    op.create_index(op.f("ix_trash_collection_id"), "trash", ["collection_id"], unique=False)
