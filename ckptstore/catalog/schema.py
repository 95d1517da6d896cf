"""Creates, upgrades and checks the catalog's schema, with Alembic."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.mounts import network_file_system
from ckptstore.catalog.tables import metadata
from ckptstore.core.hints import Command
from ckptstore.errors import CatalogUnavailableError, SchemaError, reason_of
from ckptstore.outside import Path, threading, time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptstore.catalog.engine import Database

log = logging.getLogger("ckptstore")

REVISION = "0001"
"""The newest revision under `migrations/`: the one that this program works with."""

VERSION_TABLE = "ckptstore_version"
_VERSION = sa.select(sa.column("version_num", sa.String)).select_from(sa.table(VERSION_TABLE))
_ADVISORY_KEY = 0x636B7074  # "ckpt"
_LOCK_SECONDS = 60
_LOOK_AGAIN_SECONDS = 0.02
_migrating = threading.Lock()
"""Alembic keeps its state in modules, which all threads share: one thread at a time may migrate."""


def current(database: Database) -> str | None:
    """The revision of the catalog's schema; None if there is none yet.

    Raises `CatalogUnavailableError` if the database holds tables, but not ckptstore's, or not all of theirs.
    """
    try:
        with database.read() as connection:
            if found := connection.execute(_VERSION).scalar():
                return str(found)
    except CatalogUnavailableError as error:
        if not (isinstance(error.__cause__, sa.exc.ProgrammingError) or "no such table" in str(error.__cause__)):
            raise
    with database.read() as connection:
        return _current(database, connection)


def _current(database: Database, connection: sa.Connection) -> str | None:
    names = sa.inspect(connection).get_table_names()  # asked once: another process may be making them just now
    if VERSION_TABLE in names:
        found = connection.execute(_VERSION).scalar()
        if found is None and len(names) > 1:
            raise _in_part(database, "has tables of ckptstore, but not the number of their schema")
        return found
    if names:
        raise CatalogUnavailableError(
            f"{database.name} holds other tables ({', '.join(sorted(names)[:3])}) and is not a catalog",
            "give a database of its own",
        )
    return None


def ensure(database: Database) -> None:
    """Make sure that the schema is the one of this program.

    An SQLite file is created and upgraded as needed. In a PostgreSQL database the schema is only created, if the
    database is empty. If many processes ask, one does it. Otherwise raises `SchemaError`, with the command to run.
    """
    found = current(database)
    if found == REVISION:
        if _network(database):
            _keep_mode(database)
        return
    if found is None or (database.is_sqlite and is_older(found)):
        upgrade(database)
    else:
        raise _wrong(database, found)


def check(database: Database) -> None:
    """Raise `SchemaError` unless the schema is the one of this program. Changes nothing."""
    found = current(database)
    if found != REVISION:
        raise _wrong(database, found)


def check_tables(database: Database) -> None:
    """Raise `CatalogUnavailableError` if a table is missing, as after a dump that was restored only in part."""
    with database.read() as connection:
        missing = sorted(metadata.tables.keys() - sa.inspect(connection).get_table_names())
    if missing:
        raise _in_part(database, f"has schema {REVISION}, but no table {', '.join(missing[:3])}")


def _in_part(database: Database, lacks: str) -> CatalogUnavailableError:
    rebuild = f"rebuild the catalog from the journals: {Command('scan', 'DIR')}"
    anew = "move the file away" if database.is_sqlite else "restore the whole dump; or empty the database"
    return CatalogUnavailableError(f"the catalog {database.name} {lacks}", f"{anew}, then {rebuild}")


def upgrade(database: Database) -> None:
    """Bring the schema to `REVISION`. Running it again, or in many processes at once, changes nothing more."""
    with _one_at_a_time(database), database.write() as connection:
        if not database.is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_KEY)))
        found = _current(database, connection)
        if found == REVISION:
            return
        if found is not None and not is_older(found):
            raise _wrong(database, found)
        with _migrating:
            _migrate(connection)
    if database.is_sqlite:
        _keep_mode(database)


def is_older(revision: str) -> bool:
    """Whether this program knows how to upgrade from `revision`. Revisions are numbered in order."""
    return revision.isdigit() and int(revision) < int(REVISION)


def migrations() -> Path:
    """The directory of the migrations: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "migrations"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "migrations"


def _migrate(connection: sa.Connection) -> None:
    said = logging.getLogger("alembic")  # it logs at INFO, even when imported: clutter in scripts that show INFO
    level = said.level
    said.setLevel(max(level, logging.WARNING))
    try:
        from alembic import command  # noqa: PLC0415 — a tenth of a second that only this needs
        from alembic.config import Config  # noqa: PLC0415

        config = Config()
        config.set_main_option("script_location", str(migrations()).replace("%", "%%"))
        config.attributes["connection"] = connection
        config.attributes["metadata"] = metadata
        command.upgrade(config, REVISION)
    finally:
        said.setLevel(level)


def _wrong(database: Database, found: str | None) -> SchemaError:
    if found is None:
        return SchemaError(f"{database.name} is empty: the first command creates it", f"as: {database.command('runs')}")
    if is_older(found):
        return SchemaError(
            f"the schema of {database.name} is {found}, but this program needs {REVISION}",
            f"run: {database.command('db', 'upgrade')}",
        )
    return SchemaError(
        f"the schema of {database.name} is {found}, newer than this program's {REVISION}",
        "update ckptstore here",
    )


def _network(database: Database) -> str | None:
    return network_file_system(str(database.file)) if database.is_sqlite else None


def _keep_mode(database: Database) -> None:
    """Set the journal mode, which the file keeps: a write-ahead log, but none on a network file system.

    With a write-ahead log, readers do not wait for a writer. The log needs memory that all processes share, and
    processes on two nodes share none (sqlite.org/wal.html). The mode cannot be set inside a transaction, nor while
    another process uses the file. SQLite does not wait for other processes then, so setting it is tried repeatedly.
    """
    from sqlite3 import OperationalError, connect  # noqa: PLC0415

    kind = _network(database)
    if kind is not None:
        log.warning("%s is on a network file system (%s): slower, and not for many nodes", database.name, kind)
    mode = "wal" if kind is None else "delete"
    database.disconnect()
    deadline = time.monotonic() + min(_LOCK_SECONDS, database.answer_within)
    connection = connect(str(database.file), timeout=_LOOK_AGAIN_SECONDS)
    try:
        while True:
            said = ""
            try:
                if connection.execute(f"PRAGMA journal_mode={mode}").fetchone() == (mode,):
                    return
            except OperationalError as error:
                said = str(error)
            if time.monotonic() > deadline:
                raise database.unusable(said or f"others use it with a write-ahead log, which does not work on {kind}")
            time.sleep(_LOOK_AGAIN_SECONDS)
    finally:
        connection.close()


@contextmanager
def _one_at_a_time(database: Database) -> Iterator[None]:
    if database.file is None:  # PostgreSQL: an advisory lock, inside the transaction
        yield
        return
    from filelock import FileLock, Timeout  # noqa: PLC0415 — only creating and upgrading the schema needs it

    path = f"{database.file}.lock"
    try:
        Path(path).touch()  # FileLock would wait for a directory that cannot be written to
        with FileLock(path, timeout=_LOCK_SECONDS):
            yield
    except Timeout:
        raise CatalogUnavailableError(f"another process holds {path}", "wait for it, or end it") from None
    except OSError as error:
        raise database.unusable(reason_of(error)) from None
