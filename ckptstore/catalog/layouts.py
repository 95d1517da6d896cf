"""What is kept of strategy and group info files. Each takes a connection inside a transaction, and never commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog import reads
from ckptstore.catalog.tables import launch_strategies, launches, strategies
from ckptstore.catalog.writes import insert_if_new

if TYPE_CHECKING:
    from ckptstore.core.model import Launch
    from ckptstore.core.replicas import Layout


def strategies_of(connection: sa.Connection, launch_id: str) -> dict[tuple[int, str], tuple[str, bytes]]:
    """Kind and compressed content of each strategy and group info file of a launch, by its first rank and digest."""
    first = (
        sa.select(launch_strategies.c.digest, sa.func.min(launch_strategies.c.rank).label("rank"))
        .where(launch_strategies.c.launch_id == launch_id)
        .group_by(launch_strategies.c.digest)
        .subquery()
    )
    query = sa.select(first.c.rank, strategies).join(first, first.c.digest == strategies.c.digest)
    return {(row.rank, row.digest): (row.kind, row.content) for row in connection.execute(query)}


def has_strategy(connection: sa.Connection, launch_id: str, digest: str) -> bool:
    """Whether a launch has kept this content already."""
    chosen = (launch_strategies.c.launch_id == launch_id) & (launch_strategies.c.digest == digest)
    return connection.execute(sa.select(launch_strategies.c.rank).where(chosen).limit(1)).first() is not None


def lock_launch(connection: sa.Connection, launch_id: str) -> Launch | None:
    """The launch, which nobody else changes before this transaction ends; None if it is not there."""
    connection.execute(sa.select(launches.c.id).where(launches.c.id == launch_id).with_for_update())
    return reads.launch(connection, launch_id)


def keep_strategy(
    connection: sa.Connection, *, launch_id: str, rank: int, path: str, digest: str, kind: str, content: bytes
) -> None:
    """Keep a strategy or group info file that a rank of a launch wrote: its compressed content once, by its digest."""
    insert_if_new(connection, strategies, {"digest": digest, "kind": kind, "content": content})
    row = {"launch_id": launch_id, "rank": rank, "digest": digest, "path": path}
    insert_if_new(connection, launch_strategies, row)


def set_layout(connection: sa.Connection, launch_id: str, layout: Layout) -> None:
    """Record who is whose replica in a launch, once that is known."""
    connection.execute(launches.update().where(launches.c.id == launch_id).values(layout=layout.to_json()))
