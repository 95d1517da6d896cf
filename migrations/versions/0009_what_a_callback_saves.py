"""What the files of a source hold: a share that nobody registered must not be taken for the whole state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of sources announced before it is not known."""
    op.add_column("sources", sa.Column("content", sa.String(length=16), nullable=True))
