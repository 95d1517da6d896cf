"""Verifications: what is to be looked at, in portions that processes share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing that was there before changes."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "verifications",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Boolean(), nullable=False),
        sa.Column("sample", sa.Float(), nullable=True),
        sa.Column("unknown", sa.JSON(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("ended_at", moment, nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_verifications_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verifications")),
    )
    op.create_index(op.f("ix_verifications_run_id"), "verifications", ["run_id"], unique=False)
    op.create_table(
        "verification_portions",
        sa.Column("verification_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(length=300), nullable=True),
        sa.Column("claimed_until", moment, nullable=True),
        sa.Column("done_at", moment, nullable=True),
        sa.Column("found", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["verification_id"], ["verifications.id"], name=op.f("fk_verification_portions_verification_id")
        ),
        sa.PrimaryKeyConstraint("verification_id", "number", name=op.f("pk_verification_portions")),
    )
