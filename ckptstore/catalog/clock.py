"""The one clock that all machines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.tables import UtcDateTime
from ckptstore.outside import utc_now

if TYPE_CHECKING:
    from datetime import datetime


def clock(connection: sa.Connection) -> datetime:
    """The time of the server; for an SQLite file, of this machine."""
    if connection.dialect.name == "sqlite":
        return utc_now()
    now: datetime = connection.execute(sa.select(sa.func.clock_timestamp(type_=UtcDateTime))).scalar_one()
    return now
