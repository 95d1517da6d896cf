"""Which launch of a run is alive, by its signs of life."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from ckptstore.catalog import marks, reads
from ckptstore.catalog.trash import clock
from ckptstore.core.model import BRANCH, SCANNED
from ckptstore.disk.owner import is_dead, is_here

if TYPE_CHECKING:
    from datetime import datetime

    from ckptstore.catalog.engine import Connection
    from ckptstore.catalog.marks import Sign
    from ckptstore.core.model import Launch, LaunchKey

SILENT = timedelta(seconds=60)
"""A launch that gave no sign for so long is not alive, unless its process is on this machine."""


def last_sign(connection: Connection, run_id: int | None) -> tuple[Sign | None, datetime]:
    """The newest sign of life of a run's launches, and the time by the clock that it was given by."""
    return None if run_id is None else marks.last_sign(connection, run_id), clock(connection)


def may_be_alive(sign: Sign | None, now: datetime) -> bool:
    """Whether whoever gave a sign may still be there."""
    if sign is None or is_dead(sign.process):
        return False
    return now - sign.seen_at <= SILENT or is_here(sign.process)


def living(connection: Connection, run_id: int) -> LaunchKey | None:
    """The launch of a run that may be alive: the newest one, since none begins beside a living one."""
    sign, now = last_sign(connection, run_id)
    if sign is None or not may_be_alive(sign, now):
        return None
    newest = newest_begun(connection, run_id)
    return sign.key if newest and newest.id == sign.launch else None


def newest_begun(connection: Connection, run_id: int) -> Launch | None:
    """The launch of a run that began last; None where all was found by scans."""
    begun = [each for each in reads.launches_of(connection, run_id) if not each.id.startswith((SCANNED, BRANCH))]
    return begun[-1] if begun else None
