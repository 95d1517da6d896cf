"""Checks of the catalog's database and of its schema."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from ckptstore.catalog import health, mounts, schema
from ckptstore.core.hints import Command
from ckptstore.core.limits import CLOCKS_DIFFER
from ckptstore.core.text import size, some, span
from ckptstore.doctor.checkup import Check, Status
from ckptstore.doctor.run_facts import may_write, nearest, room_of
from ckptstore.errors import CatalogDamagedError, CatalogUnavailableError, DamageError, SchemaError
from ckptstore.outside import time, utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.outside import Path

Found = TypeVar("Found")

_NAME = "database"
_UNUSABLE = CatalogUnavailableError.exit_code
_DAMAGE = DamageError.exit_code
_LITTLE_ROOM = 100_000_000
_NO_ROOM = 1_000_000
_MANY_CONNECTIONS = 0.8


def checks(database: Database) -> list[Check]:
    """Check the database and its schema. If the database cannot be used, there is a problem with exit code 4."""
    if database.file is not None and database.is_missing:
        return [_no_file(database, database.file)]
    try:
        found = _sqlite(database, database.file) if database.file is not None else _postgres(database)
        return [*found, _schema(database)]
    except CatalogUnavailableError as error:
        return [unusable(error)]


def unusable(error: CatalogUnavailableError) -> Check:
    """The problem of a catalog that cannot be used, or that is damaged."""
    if isinstance(error, CatalogDamagedError):
        return Check(_NAME, Status.PROBLEM, error.message, _save_more(), exit_code=_DAMAGE)
    return Check(_NAME, Status.PROBLEM, error.message, error.hint, exit_code=_UNUSABLE)


def _save_more() -> str:
    return f"SQLite's .recover may save more; else move the file away, and rebuild it: {Command('scan', 'DIR')}"


def _no_file(database: Database, file: Path) -> Check:
    there = f"there is no catalog {database.name}"
    folder = file.absolute().parent
    if not may_write(nearest(folder)):
        hint = f"{nearest(folder)} cannot be written to: name another catalog by --db or CKPTSTORE_URL"
    elif folder.is_dir():
        rebuild = Command("scan", "DIR")
        hint = f"the first training or scan makes it; or, if there was one, rebuild it from the journals: {rebuild}"
    else:
        hint = f"make the directory {folder}, or name another catalog by --db or CKPTSTORE_URL"
    return Check(_NAME, Status.PROBLEM, there, hint, exit_code=_UNUSABLE)


def _schema(database: Database) -> Check:
    try:
        schema.check(database)
    except SchemaError as error:
        return Check("schema", Status.PROBLEM, error.message, error.hint, exit_code=_UNUSABLE)
    return Check("schema", Status.OK, f"{schema.REVISION}, which this program works with")


def _sqlite(database: Database, file: Path) -> Iterator[Check]:
    found, took = _timed(database, health.of_sqlite)
    detail = f"{database.name}: {size(file.stat().st_size)}, {took}"
    if found.damage:
        yield Check(_NAME, Status.PROBLEM, f"{detail}; damaged: {some(found.damage)}", _save_more(), exit_code=_DAMAGE)
    else:
        yield _written_to(file, f"{detail}, undamaged")
    yield _mode(database, file, found.mode)


def _written_to(file: Path, detail: str) -> Check:
    folder = file.absolute().parent
    for path in (file, folder):
        if not may_write(path):
            hint = "nothing is registered in it, only in the journals: give the trainers the right to write"
            return Check(_NAME, Status.PROBLEM, f"{detail}; {path} cannot be written to", hint)
    room = room_of(str(folder)).bytes
    detail = f"{detail}; {size(room)} free on its disk"
    if room < _LITTLE_ROOM:
        status = Status.PROBLEM if room < _NO_ROOM else Status.WARNING
        return Check(_NAME, status, detail, "free some: until then new saves are registered in the journals only")
    return Check(_NAME, Status.OK, detail)


def _mode(database: Database, file: Path, mode: str) -> Check:
    kind = mounts.network_file_system(str(file))
    if kind is not None and mode == "wal":
        hint = "run any other command once while no process uses the catalog: it turns the log off; or use PostgreSQL"
        return Check("catalog_disk", Status.PROBLEM, f"{kind}, where its write-ahead log does not work", hint)
    if kind is not None:
        hint = "for one machine at a time; for several take PostgreSQL"
        detail = f"{database.name} is on a network file system ({kind}): without a write-ahead log, and slower"
        return Check("catalog_disk", Status.WARNING, detail, hint)
    where = mounts.kind_of(str(file)) or "a disk of unknown kind"
    if mode != "wal":
        hint = "readers wait for writers: nothing else is wrong with it"
        return Check("catalog_disk", Status.NOTE, f"{where}, but without a write-ahead log ({mode})", hint)
    return Check("catalog_disk", Status.OK, f"{where}, with a write-ahead log")


def _postgres(database: Database) -> Iterator[Check]:
    found, took = _timed(database, health.of_postgres)
    now = utc_now()
    detail = f"{database.name}: PostgreSQL {found.version}, {took}"
    if found.in_recovery or found.reads_only:
        why = "a standby, which takes no writes" if found.in_recovery else "read-only"
        hint = "name the primary" if found.in_recovery else "see default_transaction_read_only of the role and database"
        yield Check(_NAME, Status.PROBLEM, f"{detail}; it is {why}", hint)
    else:
        yield Check(_NAME, Status.OK, detail)
    detail = f"{found.connections} of {found.for_users} that the server has for users"
    if found.connections > _MANY_CONNECTIONS * found.for_users:
        hint = "raise max_connections, or put PgBouncer before it in transaction mode; idle ranks hold none"
        yield Check("connections", Status.WARNING, detail, hint)
    else:
        yield Check("connections", Status.OK, detail)
    ahead = found.clock - now
    side = "ahead of" if ahead > timedelta(0) else "behind"
    detail = f"the server's is {span(abs(ahead))} {side} this machine's"
    if abs(ahead) > CLOCKS_DIFFER:
        yield Check("server_clock", Status.WARNING, detail, "set both by NTP: one of them is wrong")
    else:
        yield Check("server_clock", Status.OK, detail)


def _timed(database: Database, look: Callable[[Connection], Found]) -> tuple[Found, str]:
    """The result of `look`, and in words how long it took to connect and to answer a first statement."""
    begin = time.perf_counter()
    with database.read() as connection:
        opened = time.perf_counter()
        health.ask(connection)
        answered = time.perf_counter()
        found = look(connection)
    return found, f"connected in {(opened - begin) * 1000:.1f} ms, answered in {(answered - opened) * 1000:.1f} ms"
