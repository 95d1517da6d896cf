"""Everything a catalog holds, as values that can be compared: runs by name instead of by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ckptstore.catalog.tables import metadata

if TYPE_CHECKING:
    from ckptstore.api import Catalog


def contents(catalog: Catalog, *, but: tuple[str, ...] = ()) -> dict[str, list[dict[str, Any]]]:
    """The rows of every table, in an order of their own; `but` leaves out tables."""
    tables = metadata.tables
    with catalog.database.read() as connection:
        names = {row.id: row.name for row in connection.execute(sa.select(tables["runs"]))}
        rows = {
            name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for name, table in tables.items()
            if name not in but
        }
    for name, every in rows.items():
        for row in every:
            if name == "runs":
                del row["id"]
            if "run_id" in row:
                row["run_id"] = names[row["run_id"]]
        every.sort(key=repr)
    return rows
