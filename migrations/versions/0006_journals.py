"""How far each journal was read; what came of a plan may name a file that no journal told of yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of the journals of older runs nothing was read: there are none."""
    op.create_table(
        "journals",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("taken_up", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_journals_run_id")),
        sa.PrimaryKeyConstraint("run_id", "path", name=op.f("pk_journals")),
    )
    with op.batch_alter_table("outcomes") as table:
        table.drop_constraint(op.f("fk_outcomes_checkpoint_id"), type_="foreignkey")
