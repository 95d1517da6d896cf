"""Which journal was taken up, when a look at the disk last changed a record, and what was taken away from runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing is known of what was before."""
    moment = sa.DateTime(timezone=True)
    op.add_column("journals", sa.Column("head", sa.String(length=32), nullable=True))
    op.add_column("checkpoints", sa.Column("amended_at", moment, nullable=True))
    op.create_table(
        "removals",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_removals_run_id")),
        sa.PrimaryKeyConstraint("run_id", "what", "name", name=op.f("pk_removals")),
    )
