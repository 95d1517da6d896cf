"""What each rank sees of the files that it may load, told through the catalog where ranks share no disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.tables import views
from ckptstore.catalog.upserts import put
from ckptstore.core.model import Observed, View

if TYPE_CHECKING:
    from ckptstore.core.model import LaunchKey


def tell(connection: sa.Connection, key: LaunchKey, rank: int, view: View) -> None:
    """What a rank of a launch sees, in place of what it told before."""
    seen = {path: list(each) for path, each in view.seen.items()}
    put(connection, views, {"launch_id": key, "rank": rank, "host": view.host, "seen": seen})


def told(connection: sa.Connection, key: LaunchKey) -> dict[int, View]:
    """What the ranks of a launch told, by rank."""
    found = connection.execute(sa.select(views.c.rank, views.c.host, views.c.seen).where(views.c.launch_id == key))
    return {rank: View(host, {path: Observed(*each) for path, each in seen.items()}) for rank, host, seen in found}
