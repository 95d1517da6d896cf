"""Leases: a launch holds the state that it starts from, until it has made a newer one or is not heard of."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ckptstore.catalog import marks, reads
from ckptstore.core.limits import LEASE
from ckptstore.outside import utc_now

if TYPE_CHECKING:
    from collections.abc import Collection

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.model import Checkpoint, LaunchKey

CLOCKS_DIFFER = timedelta(minutes=10)  # at most, between nodes: a lease counts so much longer than it says


def take(connection: Connection, run_id: int, key: LaunchKey, files: Collection[Checkpoint], now: datetime) -> bool:
    """Hold the state of these files for a launch; False if retention has given one up since it was chosen.

    Called in the transaction that stores the plan.
    """
    reads.lock_run(connection, run_id)  # retention gives up a state under that lock too: each sees what the other did
    if not marks.are_as_chosen(connection, files):
        return False
    if files:
        marks.hold(connection, key, now + LEASE)
    return True


def renew(database: Database, key: LaunchKey) -> None:
    """Extend the lease of a launch that is alive."""
    until = utc_now() + LEASE
    database.in_write(lambda connection: marks.hold(connection, key, until))
