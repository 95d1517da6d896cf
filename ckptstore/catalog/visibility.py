"""Which of the files that it may load each rank sees. Ranks without a common disk tell each other here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.tables import views
from ckptstore.catalog.upserts import put
from ckptstore.core.model import Observed, View

if TYPE_CHECKING:
    from ckptstore.core.model import LaunchKey


def tell(connection: sa.Connection, key: LaunchKey, rank: int, view: View) -> None:
    """Store what a rank of a launch sees, in place of its earlier view."""
    seen = {path: list(each) for path, each in view.seen.items()}
    put(connection, views, {"launch_id": key, "rank": rank, "host": view.host, "seen": seen})


def told(connection: sa.Connection, key: LaunchKey) -> dict[int, View]:
    """The views of the ranks of a launch, by rank, in their order."""
    query = sa.select(views.c.rank, views.c.host, views.c.seen).where(views.c.launch_id == key)
    found = connection.execute(query.order_by(views.c.rank))
    return {rank: View(host, {path: Observed(*each) for path, each in seen.items()}) for rank, host, seen in found}
