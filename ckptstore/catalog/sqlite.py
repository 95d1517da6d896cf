"""The part that only SQLite needs: opening a file, and beginning a transaction."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from ckptstore.core.hints import Command
from ckptstore.errors import reason_of
from ckptstore.outside import CHANCE, Path, os, time

_FILE, _WAITS, _HAS_LOG = "file", "waits", "has_log"
_LOCK = "BEGIN IMMEDIATE"
_PAUSE_SECONDS = (0.005, 0.02)
_LEAST_ROOM = 64 << 10  # bytes


def make_engine(url: sa.URL, wait: float) -> sa.Engine:
    """An engine for a file; `wait` is how long to wait for a lock, in seconds."""
    engine = sa.create_engine(url, connect_args={"timeout": wait})
    path = str(url.database)

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, record: Any) -> None:
        record.info[_FILE] = _identity(path)
        record.info[_WAITS] = True
        connection.isolation_level = None  # the driver begins no transactions: `begin` does
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "checkout")
    def _look_at_the_file(_connection: sqlite3.Connection, record: Any, _proxy: Any) -> None:
        # An open connection would go on writing to a file that was deleted or replaced, without an error.
        if record.info[_FILE] != _identity(path):
            raise sa.exc.DisconnectionError(f"{path} is another file now")

    return engine


def begin(connection: sa.Connection, *, writes: bool, wait: float, answer_within: float) -> None:
    """Begin a transaction. A writer takes the lock at once: SQLite would not wait for it after the first read.

    `wait` is how long to wait for the lock, in seconds. Each commit of another process starts that time anew, up to
    `answer_within` seconds in all.
    """
    if not writes:
        connection.exec_driver_sql("BEGIN")
        return
    driver: Any = connection.connection.dbapi_connection
    driver.execute("PRAGMA busy_timeout=0")
    try:
        connection.exec_driver_sql(_LOCK)
    except sa.exc.OperationalError:
        if not _locked(driver, wait, answer_within):
            raise
    finally:
        if not connection.invalidated:  # SQLAlchemy has closed it if Ctrl-C came
            driver.execute(f"PRAGMA busy_timeout={1000 * wait:.0f}")


def _locked(driver: sqlite3.Connection, wait: float, answer_within: float) -> bool:
    """Wait for the lock; return whether this connection has it. All waiting processes ask equally often.

    With SQLite's own wait, a process asks less and less often, down to ten times a second (sqlite3.c,
    sqliteDefaultBusyCallback): if many processes write all the time, those that have waited longest are overtaken.
    """
    now = time.monotonic()
    end, deadline = now + answer_within, now + wait
    seen: object = None
    while time.monotonic() < min(deadline, end):
        time.sleep(CHANCE.uniform(*_PAUSE_SECONDS))
        try:
            driver.execute(_LOCK)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                return False
        else:
            return True
        with suppress(sqlite3.OperationalError):  # without a write-ahead log a read fails during a commit
            version = driver.execute("PRAGMA data_version").fetchone()
            if seen is not None and version != seen:
                deadline = time.monotonic() + wait
            seen = version
    return False


def wait_for_disk(connection: sa.Connection, *, is_kept: bool) -> None:
    """Let the next transaction wait for the disk when it commits, unless it `is_kept` (see `Database.write`).

    A power failure may undo a transaction that did not wait. It does not damage a file with a write-ahead log
    (sqlite.org/pragma.html#pragma_synchronous); without such a log all transactions wait. Call this before `begin`.
    """
    info = connection.info
    if is_kept and not info.get(_HAS_LOG):  # no process can change it while this connection is open
        info[_HAS_LOG] = connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    waits = not (is_kept and info[_HAS_LOG])
    if waits is not info[_WAITS]:
        connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if waits else 'NORMAL'}")
        info[_WAITS] = waits


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is at a path; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def remedy(file: Path, reason: str) -> str:
    """What to do about a file that cannot be used, by SQLite's message and a look at the file and its directories."""
    other = "or name another catalog by --db or CKPTSTORE_URL"
    file = file.absolute()
    folder = file.parent
    closed = next((each for each in reversed(file.parents) if each.is_dir() and not _may(each, os.X_OK)), None)
    if closed is not None:
        return f"check that this user may enter {closed}, {other}"
    if fault := _fault_of(file):
        return fault
    if not folder.is_dir():
        return f"there is no directory {folder}: create it, {other}"
    for path in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):  # SQLite gives the log's files the file's rights
        if path.exists() and not _may(path, os.R_OK):
            return f"check that {path} can be read by this user, {other}"
        if path.exists() and not _may(path, os.W_OK):
            return f"check that {path} can be written to by this user, {other}"
    return (
        _what_frees(folder)
        if "is full" in reason or _is_full(folder)
        else f"check that {folder} can be written to, {other}"
    )


def _fault_of(path: Path) -> str:
    """Why a path cannot be that of a catalog; empty if it can."""
    try:
        return "it is a directory: give a file in it" if path.is_dir() else ""
    except OSError as error:
        return f"its path cannot be used ({reason_of(error)}): name another catalog by --db or CKPTSTORE_URL"


def _may(path: Path, mode: int) -> bool:
    """Whether the effective user of this process has this access to a path."""
    return os.access(path, mode, effective_ids=True)


def _what_frees(folder: Path) -> str:
    """The commands that free the full disk of the catalog. They use another catalog, made from the journals."""
    there = ("--db", "OTHER.db")
    gc = Command(*there, "gc", "RUN", "--keep-last", 2, "--apply", "--now")
    return (
        f"the disk of {folder} is full: free room on it; if checkpoints fill it, use a catalog on another disk: "
        f"{Command(*there, 'scan', 'DIR', '--run', 'RUN')}, then {Command(*there, 'purge', 'RUN', '--now')} to empty "
        f"the trash, and {gc} to remove older states"
    )


def _is_full(folder: Path) -> bool:
    """Whether the disk has no room for the catalog's own files: the index of the log alone has 32 KB."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    is_short = room.f_blocks > 0 and room.f_bavail * room.f_frsize < _LEAST_ROOM  # /proc has no blocks at all
    return is_short or (room.f_files > 0 and room.f_favail == 0)


def connect_to_look(path: Path, wait: float) -> sqlite3.Connection:
    """Connect to an existing file, only to read it.

    A file that other processes use is opened in mode "ro". For any other file, SQLite creates the two files of its log
    beside it, and deletes them when the connection is closed. `wait` is how long to wait for a lock, in seconds.
    """
    # In mode "rw", the last connection to close copies the rest of a log into the file.
    mode = "ro" if os.path.exists(f"{path}-wal") or not os.access(path, os.W_OK) else "rw"
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=wait, check_same_thread=False)
    connection.execute("PRAGMA query_only=ON")
    return connection
