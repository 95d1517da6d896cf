"""Show, check and upgrade the schema of a catalog; `connect` does the safe upgrades by itself."""

from __future__ import annotations

from dataclasses import dataclass

from ckptstore.catalog import schema
from ckptstore.catalog.engine import open_database
from ckptstore.errors import SchemaError


@dataclass(frozen=True)
class SchemaStatus:
    """The catalog, the revision of its schema (None: it has none yet), and the one that this program works with."""

    catalog: str
    found: str | None
    needed: str


def current(url: str | None) -> SchemaStatus:
    """Show which revision the schema of the catalog at `url` has."""
    database = open_database(url)
    found = schema.current(database) if not database.is_missing else None
    return SchemaStatus(database.name, found, schema.REVISION)


def check(url: str | None) -> SchemaStatus:
    """Raise `SchemaError` unless the schema is the one that this program works with, and has all its tables."""
    database = open_database(url)
    if database.is_missing:
        raise SchemaError(f"there is no catalog {database.name}", f"run: {database.command('db', 'upgrade')}")
    schema.check(database)
    schema.check_tables(database)
    return current(url)


def upgrade(url: str | None) -> SchemaStatus:
    """Create the schema, or bring it to this program's revision."""
    database = open_database(url)
    schema.upgrade(database)
    schema.check_tables(database)
    return current(url)
