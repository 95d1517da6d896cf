"""Inserts rows that may exist already, each in one statement: two processes that looked first would both insert."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def insert(dialect: str, table: sa.Table) -> Any:
    """An INSERT that supports ON CONFLICT: SQLAlchemy has one class for each of the two databases."""
    # Import only the dialect in use: importing the other takes as long as a command's whole query.
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def insert_if_new(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its key exists; return whether it was inserted."""
    return connection.execute(_if_new(connection.dialect.name, table), dict(row)).first() is not None


def put(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> None:
    """Insert a row; where one with its key exists, set these values in it."""
    connection.execute(_put(connection.dialect.name, table, tuple(row)), dict(row))


def put_newest(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows; where one with its key exists, set these values in it if its version is the lower one."""
    names = table.primary_key.columns.keys()
    newest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        newest[key] = max(newest.get(key, row), row, key=lambda each: str(each["version"]))
    if rows:
        in_order = [newest[key] for key in sorted(newest)]  # processes that write the same rows lock them in one order
        connection.execute(_put(connection.dialect.name, table, tuple(rows[0]), if_newer=True), in_order)


@cache
def _if_new(dialect: str, table: sa.Table) -> Any:
    return insert(dialect, table).on_conflict_do_nothing().returning(sa.literal(1))


@cache
def _put(dialect: str, table: sa.Table, names: tuple[str, ...], *, if_newer: bool = False) -> Any:
    statement = insert(dialect, table)
    keys = table.primary_key.columns.keys()
    values = {name: statement.excluded[name] for name in names if name not in keys}
    is_newer = table.c.version < statement.excluded.version if if_newer else None
    return statement.on_conflict_do_update(index_elements=keys, set_=values, where=is_newer)
