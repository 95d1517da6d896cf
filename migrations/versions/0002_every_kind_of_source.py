"""A source says what kind of file it writes; a state can be quarantined."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Sources of ModelCheckpoint were all there were: they keep their names, as periodic ones."""
    with op.batch_alter_table("sources") as table:
        table.add_column(sa.Column("kind", sa.String(length=16), nullable=False, server_default="periodic"))
        table.alter_column("breakpoints_before", new_column_name="names_before")
    with op.batch_alter_table("sources") as table:
        table.alter_column("kind", server_default=None)
        table.drop_constraint(op.f("pk_sources"), type_="primary")
        table.create_primary_key(op.f("pk_sources"), ["launch_id", "rank", "directory", "kind", "prefix"])
    for name in ("checkpoints", "endings"):
        with op.batch_alter_table(name) as table:
            table.add_column(sa.Column("quarantine", sa.Text(), nullable=True))
