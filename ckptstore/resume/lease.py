"""A launch holds the state that it starts from, until it has made a newer one or shows no more signs of life."""

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

CLOCKS_DIFFER = timedelta(minutes=10)
"""By how much the clocks of nodes may differ: a lease counts so much longer than it says."""


def take(connection: Connection, run_id: int, key: LaunchKey, files: Collection[Checkpoint], now: datetime) -> bool:
    """Hold the state of these files for a launch from now on; False if one is not as it was when it was chosen.

    Retention may have given it up since, or deleted it at once. In the transaction that stores the plan: retention
    gives up a state in one that locks the run too, so the one sees what the other did.
    """
    reads.lock_run(connection, run_id)
    if not marks.are_as_chosen(connection, files):
        return False
    if files:
        marks.hold(connection, key, now + LEASE)
    return True


def renew(database: Database, key: LaunchKey) -> None:
    """The launch is alive."""
    until = utc_now() + LEASE
    database.in_write(lambda connection: marks.hold(connection, key, until))
