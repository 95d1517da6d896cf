"""What a step takes of the data, where a launch starts in its own steps, the host of a rank, and strategy files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A launch that resumed before this went on with the steps of its parent."""
    with op.batch_alter_table("launches") as table:
        table.add_column(sa.Column("batch_size", sa.Integer(), nullable=True))
        table.add_column(sa.Column("shards", sa.Integer(), nullable=True))
    with op.batch_alter_table("resolutions") as table:
        table.add_column(sa.Column("start_step", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("sources") as table:
        table.add_column(sa.Column("host", sa.Text(), nullable=True))
    op.create_table(
        "strategies",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_strategies")),
    )
    op.create_table(
        "launch_strategies",
        sa.Column("launch_id", sa.String(length=200), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_launch_strategies_launch_id")),
        sa.ForeignKeyConstraint(["digest"], ["strategies.digest"], name=op.f("fk_launch_strategies_digest")),
        sa.PrimaryKeyConstraint("launch_id", "rank", "digest", name=op.f("pk_launch_strategies")),
    )
    op.execute("UPDATE resolutions SET start_step = parent_step")
