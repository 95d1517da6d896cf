"""Show, check and upgrade the schema of a catalog; `connect` does by itself what is safe."""

from __future__ import annotations

from dataclasses import dataclass

from ckptstore.catalog import schema
from ckptstore.catalog.engine import open_database


@dataclass(frozen=True)
class SchemaStatus:
    """The catalog, the revision of its schema (None: it has none yet), and the one that this program works with."""

    catalog: str
    found: str | None
    needed: str


def current(url: str | None) -> SchemaStatus:
    """Show which revision the schema of the catalog at `url` has."""
    database = open_database(url)
    return SchemaStatus(database.name, schema.current(database), schema.REVISION)


def check(url: str | None) -> SchemaStatus:
    """Raise `SchemaError` unless it is the one this program works with."""
    schema.check(open_database(url))
    return current(url)


def upgrade(url: str | None) -> SchemaStatus:
    """Create the schema, or bring it to this program's revision."""
    schema.upgrade(open_database(url))
    return current(url)
