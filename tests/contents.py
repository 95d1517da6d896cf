"""Everything a catalog holds, as values that can be compared: runs by name instead of by number."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ckptstore.api import Catalog, connect
from ckptstore.catalog.tables import metadata


def back_up(catalog: Catalog, path: Path) -> str:
    """Copy an SQLite catalog that is in use; the URL of the copy."""
    with closing(sqlite3.connect(str(catalog.database.file))) as now, closing(sqlite3.connect(path)) as then:
        now.backup(then)
    return f"sqlite:///{path}"


def put_back(catalog: Catalog, backup: Path) -> Catalog:
    """Have the copy in place of the catalog, as an administrator would."""
    file = Path(str(catalog.database.file))
    catalog.database.disconnect()
    for name in (f"{file}-wal", f"{file}-shm"):
        Path(name).unlink(missing_ok=True)
    shutil.copy(backup, file)
    return connect(str(file))


WORK = ("journals", "unwritten", "leases", "exit_requests", "views", "gc_locks", "copying", "notifications")
"""Tables of what is under way: no journal tells of it."""


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
