"""Asks a database about its own health. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from datetime import datetime

_ERRORS_SHOWN = 3


@dataclass(frozen=True)
class SqliteHealth:
    """The journal mode ("wal": readers and a writer do not wait for each other), and the errors found (empty: none)."""

    mode: str
    damage: tuple[str, ...]


@dataclass(frozen=True)
class PostgresHealth:
    """A server: its version, whether it takes writes, its connections now and at most, and its clock.

    `for_users` is the number of connections that users other than superusers can have.
    """

    version: str
    in_recovery: bool
    reads_only: bool
    connections: int
    for_users: int
    clock: datetime


def of_sqlite(connection: sa.Connection) -> SqliteHealth:
    """Read the whole file, and check that it is not damaged (sqlite.org/pragma.html#pragma_quick_check)."""
    mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
    said = list(connection.exec_driver_sql(f"PRAGMA quick_check({_ERRORS_SHOWN})").scalars())
    return SqliteHealth(str(mode), () if said == ["ok"] else tuple(" ".join(str(line).split()) for line in said))


def of_postgres(connection: sa.Connection) -> PostgresHealth:
    """Ask the server for values that every role may see (postgresql.org/docs/current/monitoring-stats.html)."""
    row = connection.exec_driver_sql(
        "SELECT current_setting('server_version'), pg_is_in_recovery(),"
        " current_setting('default_transaction_read_only') = 'on',"
        " (SELECT sum(numbackends) FROM pg_stat_database),"
        " current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,"
        " clock_timestamp()"
    ).one()
    return PostgresHealth(str(row[0]), bool(row[1]), bool(row[2]), int(row[3]), int(row[4]), row[5])


def ask(connection: sa.Connection) -> None:
    """Run the shortest statement. Its duration is the round-trip time to the database."""
    connection.execute(sa.select(1)).scalar_one()
