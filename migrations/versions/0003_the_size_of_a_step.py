"""What a step takes of the data, where a launch starts in its own steps, and the host of a rank."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
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
    op.execute("UPDATE resolutions SET start_step = parent_step")
