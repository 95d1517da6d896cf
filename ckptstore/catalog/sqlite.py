"""SQLite's own part: opening a file, and beginning a transaction."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from ckptstore.core.hints import Command
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
        connection.isolation_level = None  # transactions are ours to begin, see `begin`
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "checkout")
    def _look_at_the_file(_connection: sqlite3.Connection, record: Any, _proxy: Any) -> None:
        # An open connection goes on writing to a file that was deleted or replaced, and nobody hears of it.
        if record.info[_FILE] != _identity(path):
            raise sa.exc.DisconnectionError(f"{path} is another file now")

    return engine


def begin(connection: sa.Connection, *, writes: bool, wait: float, answer_within: float) -> None:
    """Open a transaction: one that reads first and writes later cannot be made to wait, so that a writer locks at once.

    `wait` is how long to wait for that lock, in seconds; as long as others get it and commit, up to `answer_within`.
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
        driver.execute(f"PRAGMA busy_timeout={1000 * wait:.0f}")


def _locked(driver: sqlite3.Connection, wait: float, answer_within: float) -> bool:
    """Whether the lock was got. All who wait ask equally often.

    SQLite's own wait asks ever more seldom, down to ten times a second (sqlite3.c, sqliteDefaultBusyCallback): where
    many processes write again and again, those that have waited longest are overtaken.
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
        with suppress(sqlite3.OperationalError):  # without a write-ahead log nobody reads while another commits
            version = driver.execute("PRAGMA data_version").fetchone()
            if seen is not None and version != seen:
                deadline = time.monotonic() + wait
            seen = version
    return False


def wait_for_disk(connection: sa.Connection, *, is_kept: bool) -> None:
    """Have the next transactions wait for the disk when they commit, but for one of what `is_kept` elsewhere.

    Such a one may be undone by a power failure, and nothing else happens to the file, if it has a write-ahead log
    (sqlite.org/pragma.html#pragma_synchronous). To be called before a transaction is opened.
    """
    info = connection.info
    if is_kept and not info.get(_HAS_LOG):  # nobody can change the mode while this connection is open
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
    """What to do about a file that cannot be used, by what SQLite says and what can be seen of it from here."""
    other = "or name another catalog by --db or CKPTSTORE_URL"
    given, file = file, file.absolute()
    folder = file.parent
    closed = next((each for each in reversed(file.parents) if each.is_dir() and not _may(each, os.X_OK)), None)
    if closed is not None:
        return f"check that this user may enter {closed}, {other}"
    if file.is_dir():
        return "it is a directory: give a file in it"
    if not folder.is_dir():
        return _absolute(given) or f"there is no directory {folder}: create it, {other}"
    for path in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):  # the log's two have the rights that the file had
        if path.exists() and not _may(path, os.R_OK):
            return f"check that {path} can be read by this user, {other}"
        if path.exists() and not _may(path, os.W_OK):
            return f"check that {path} can be written to by this user, {other}"
    return (
        _what_frees(folder)
        if "is full" in reason or _is_full(folder)
        else f"check that {folder} can be written to, {other}"
    )


def _absolute(given: Path) -> str:
    """The absolute path to write in place of a relative one, if its directory exists; else empty."""
    if given.is_absolute() or not Path("/", given).parent.is_dir():
        return ""
    return f"{given} is below {Path.cwd()}: for /{given} write sqlite:////{given}, with four slashes"


def _may(path: Path, mode: int) -> bool:
    """Whether this process may, as the user that it acts as; one that root made it is not root."""
    return os.access(path, mode, effective_ids=True)


def _what_frees(folder: Path) -> str:
    """The commands that free a full disk that the catalog is on: they use another catalog, made of the journals."""
    there = ("--db", "OTHER.db")
    gc = Command(*there, "gc", "RUN", "--keep-last", 2, "--apply", "--now")
    return (
        f"the disk of {folder} is full: free room on it; if checkpoints fill it, use a catalog on another disk: "
        f"{Command(*there, 'scan', 'DIR', '--run', 'RUN')}, then {Command(*there, 'purge', 'RUN', '--now')} to empty "
        f"the trash, and {gc} to remove older states"
    )


def _is_full(folder: Path) -> bool:
    """Whether the catalog's own files do not fit any more: the index of its log has 32 KB."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    is_short = room.f_blocks > 0 and room.f_bavail * room.f_frsize < _LEAST_ROOM  # /proc has no blocks at all
    return is_short or (room.f_files > 0 and room.f_favail == 0)


def connect_to_look(path: Path, wait: float) -> sqlite3.Connection:
    """Connect to a file that is there, for who changes nothing, and makes nothing either.

    One that others use is opened for reading only; else SQLite keeps its own two files beside it while it is read, and
    takes them away again. `wait` is how long to wait for a lock, in seconds.
    """
    # What is left of a log is taken into the file by whoever closes it last, unless he only reads.
    mode = "ro" if Path(f"{path}-wal").exists() or not os.access(path, os.W_OK) else "rw"
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=wait, check_same_thread=False)
    connection.execute("PRAGMA query_only=ON")
    return connection
