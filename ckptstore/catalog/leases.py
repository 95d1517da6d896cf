"""Leases of launches: which state each holds against retention while it starts, and its signs of life."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.tables import launches, leases
from ckptstore.catalog.upserts import insert_if_new, put
from ckptstore.core.limits import LEASE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from ckptstore.core.model import LaunchKey


class Sign(NamedTuple):
    """The newest sign of life of a launch: when it was given, by the clock of the database, and by which process."""

    key: LaunchKey
    launch: str
    process: str
    seen_at: datetime


def hold(connection: sa.Connection, key: LaunchKey, until: datetime) -> None:
    """Let a launch hold the state that it starts from up to `until`."""
    put(connection, leases, {"launch_id": key, "expires_at": until})


def hold_if_new(connection: sa.Connection, key: LaunchKey, until: datetime) -> None:
    """Let a launch hold the state that it starts from up to `until`, unless it has a lease already."""
    insert_if_new(connection, leases, {"launch_id": key, "expires_at": until})


def give_sign(connection: sa.Connection, key: LaunchKey, process: str, now: datetime) -> None:
    """Record that a launch is alive, and extend its hold on the state that it starts from."""
    put(connection, leases, {"launch_id": key, "expires_at": now + LEASE, "process": process, "seen_at": now})


def end_signs(connection: sa.Connection, key: LaunchKey) -> None:
    """Record that a launch has ended or rests: no start needs to wait for its signs of life."""
    connection.execute(_SET_LEASE, {"own_launch": key, "process": None})


def last_sign(connection: sa.Connection, run: int) -> Sign | None:
    """The last sign of life of the newest launch of a run that gives any; None if none does."""
    return last_signs(connection, [run]).get(run)


def last_signs(connection: sa.Connection, ids: Sequence[int]) -> dict[int, Sign]:
    """The same for each of these runs; runs without a launch that gives signs are left out."""
    found = connection.execute(_LAST_SIGNS, {"own_runs": list(ids)})
    return {run: Sign(*sign) for run, *sign in found}  # the newest launch of a run comes last


def signs_of(connection: sa.Connection, run: int) -> dict[str, tuple[str | None, datetime]]:
    """The last sign of life of each launch of a run that ever gave one: its process (None: it has ended), and when."""
    query = sa.select(launches.c.name, leases.c.process, leases.c.seen_at)
    query = query.join(launches, launches.c.id == leases.c.launch_id)
    chosen = query.where(launches.c.run_id == run, leases.c.seen_at.is_not(None))
    return {name: (process, seen_at) for name, process, seen_at in connection.execute(chosen)}


_LAST_SIGNS = (
    sa.select(launches.c.run_id, launches.c.id, launches.c.name, leases.c.process, leases.c.seen_at)
    .join(launches, launches.c.id == leases.c.launch_id)
    .where(any_of(launches.c.run_id, "own_runs"), leases.c.process.is_not(None))
    .order_by(launches.c.launch_order)
)
_SET_LEASE = leases.update().where(leases.c.launch_id == sa.bindparam("own_launch"))
