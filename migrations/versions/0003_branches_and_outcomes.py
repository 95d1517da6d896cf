"""A launch can be asked to go back to an older state; what came of a restore is recorded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Until now no launch was asked to: each took the newest state."""
    with op.batch_alter_table("resolutions") as table:
        table.add_column(sa.Column("branched", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("resolutions") as table:
        table.alter_column("branched", server_default=None)
    op.drop_index(op.f("ix_checkpoints_save_id"), table_name="checkpoints")
    op.create_index(op.f("ix_checkpoints_save_id_state"), "checkpoints", ["save_id", "state"])
    op.create_table(
        "outcomes",
        sa.Column("launch_id", sa.String(length=200), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("checkpoint_id", sa.String(length=32), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name=op.f("fk_outcomes_launch_id")),
        sa.ForeignKeyConstraint(["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_outcomes_checkpoint_id")),
        sa.PrimaryKeyConstraint("launch_id", "rank", name=op.f("pk_outcomes")),
    )
