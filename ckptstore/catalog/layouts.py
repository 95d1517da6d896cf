"""Reads the strategy and group info files that the catalog keeps. Functions take a connection in a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.tables import launch_strategies, strategies

if TYPE_CHECKING:
    from ckptstore.core.model import LaunchKey


def strategies_of(connection: sa.Connection, key: LaunchKey) -> dict[tuple[int, str], tuple[str, bytes]]:
    """Kind and compressed content of each strategy and group info file of a launch, by its lowest rank and digest."""
    first = (
        sa.select(launch_strategies.c.digest, sa.func.min(launch_strategies.c.rank).label("rank"))
        .where(launch_strategies.c.launch_id == key)
        .group_by(launch_strategies.c.digest)
        .subquery()
    )
    query = sa.select(first.c.rank, strategies).join(first, first.c.digest == strategies.c.digest)
    return {(row.rank, row.digest): (row.kind, row.content) for row in connection.execute(query)}


def has_strategy(connection: sa.Connection, key: LaunchKey, digest: str) -> bool:
    """Whether the catalog has a file of a launch with this content."""
    chosen = (launch_strategies.c.launch_id == key) & (launch_strategies.c.digest == digest)
    return connection.execute(sa.select(launch_strategies.c.rank).where(chosen).limit(1)).first() is not None
