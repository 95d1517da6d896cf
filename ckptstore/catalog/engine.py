"""Opens the catalog's database: SQLite or PostgreSQL, by URL."""

from __future__ import annotations

import re
import weakref
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection as Connection  # noqa: PLC0414 — the type that others pass on

from ckptstore.catalog import postgres, sqlite, urls
from ckptstore.catalog.backoff import Backoff
from ckptstore.catalog.tables import UtcDateTime, metadata
from ckptstore.core.hints import Command
from ckptstore.errors import CatalogBusyError, CatalogDamagedError, CatalogForbidsError, CatalogUnavailableError
from ckptstore.outside import Path, os, threading, time, utc_now

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator
    from datetime import datetime

T = TypeVar("T")

_WAIT_SECONDS = 10
_ANSWER_SECONDS = 120.0
_LONGEST_PAUSE_SECONDS = 1.0
_TRUSTED_SECONDS = 1.0
_FORK_WAITS_SECONDS, _FORK_LOOKS_SECONDS = 1.0, 0.005
_NO_TABLE = re.compile(r'no such table|relation "[^"]*" does not exist')
_NO_COLUMN = re.compile(r"no such column|has no column named|column .* does not exist")


class Database:
    """One catalog database. Use cases open their transactions here, and nowhere else.

    - `answer_within` is how long to wait for a connection, for a lock and for the answer to a statement, in seconds. A
      connection and a lock are waited for 10 s at most, except an SQLite lock that other processes keep acquiring.
    - A PostgreSQL connection is open for one transaction or for a `connected` block. One thread at a time uses it.
      So a process that waits for its next save holds no connection, and no process holds two.
    - `ckptstore serve` asks for more `connections`: it keeps up to that many open, and its threads share them.
    """

    def __init__(self, url: sa.URL, *, answer_within: float = _ANSWER_SECONDS, connections: int = 1) -> None:
        self.url = url
        self._connections = connections
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.answer_within = answer_within
        self._wait = min(answer_within, _WAIT_SECONDS)
        self._engine = sqlite.make_engine(url, self._wait) if self.is_sqlite else self._postgres_engine()
        self._own = _Own()
        _databases.add(self)

    @property
    def name(self) -> str:
        """The catalog's URL or path for messages, without its password."""
        return urls.shown(self.url)

    def command(self, *arguments: str) -> Command:
        """A command that names this catalog by `--db`, so that it works in any environment."""
        return Command("--db", self.name, *arguments)

    @property
    def file(self) -> Path | None:
        """The SQLite file; None on PostgreSQL."""
        return Path(self.url.database) if self.is_sqlite and self.url.database else None

    @property
    def is_missing(self) -> bool:
        """Whether there is no SQLite file. False if its path cannot be looked at: the first use of it says why."""
        try:
            return self.file is not None and not self.file.exists()
        except OSError:
            return False

    def disconnect(self) -> None:
        """Close idle connections; the next transaction opens one."""
        self._engine.dispose()

    def let_go_before_fork(self) -> None:
        """Close SQLite's connections before a fork: else the child's writes would be lost.

        SQLite keeps the locks of a process in its memory. The child inherits that memory, and would take its parent's
        locks for its own (sqlite.org/howtocorrupt.html, §2.6). Waits up to a second for transactions of other threads.
        """
        pool = self._engine.pool
        if not isinstance(pool, sa.pool.QueuePool) or not self.is_sqlite:
            return
        deadline = time.monotonic() + _FORK_WAITS_SECONDS
        while pool.checkedout() and time.monotonic() < deadline:
            time.sleep(_FORK_LOOKS_SECONDS)
        self._engine.dispose()

    def forget(self) -> None:
        """Drop the connections without closing them: they belong to the parent process."""
        self._engine.dispose(close=False)
        self._own = _Own()

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Let this thread's transactions in the block share one connection. It is closed at the end."""
        if self.is_sqlite or self._own.shares:
            yield
            return
        self._own.shares = True
        try:
            yield
        finally:
            self._own.shares = False
            self._close()

    def let_go(self) -> None:
        """Close the connection that a `connected` block shares, before long work that needs none."""
        if not self._own.is_busy:
            self._close()

    def let_go_if_idle(self) -> None:
        """Close that connection if it was idle for a second. Call this repeatedly during long work."""
        if time.monotonic() - self._own.used_at > _TRUSTED_SECONDS:
            self.let_go()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the catalog and changes nothing."""
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def write(self, *, is_kept: bool = False) -> Iterator[sa.Connection]:
        """A transaction that is committed at the end of the block, or rolled back by an exception.

        `is_kept`: a power failure may undo it, since a journal on the disk has the same events, or since the loss does
        no harm. Then SQLite does not wait for the disk.
        """
        with self._transaction(writes=True, is_kept=is_kept) as connection:
            yield connection

    def in_write(self, work: Callable[[sa.Connection], T], *, is_kept: bool = False) -> T:
        """Run `work` in a transaction, and return its result. Try again after a transient error, such as a deadlock.

        `work` may run twice, even if its first transaction was committed: the second time must change nothing.
        """

        def once() -> T:
            with self.write(is_kept=is_kept) as connection:
                return work(connection)

        return self._tried(once, CatalogBusyError)

    def _begin(self, connection: sa.Connection, *, writes: bool) -> None:
        if self.is_sqlite:
            sqlite.begin(connection, writes=writes, wait=self._wait, answer_within=self.answer_within)
        else:
            connection.exec_driver_sql(postgres.opening(self._wait, writes=writes))

    @contextmanager
    def _transaction(self, *, writes: bool, is_kept: bool = False) -> Iterator[sa.Connection]:
        try:
            with self._connection() as connection, connection.begin():
                if self.is_sqlite and writes:
                    sqlite.wait_for_disk(connection, is_kept=is_kept)
                self._begin(connection, writes=writes)
                yield connection
        except sa.exc.DBAPIError as error:  # a violated constraint too: the catalog was replaced by another
            raise self._unavailable(error) from error
        except Exception:
            raise
        except BaseException:
            self._drop_interrupted()
            raise

    @contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        own = self._own
        own.in_use = None  # it went back to the pool, and another thread may use it
        if self.is_sqlite:
            with self._engine.connect() as connection:
                own.in_use = connection.connection.dbapi_connection
                yield connection
            return
        if own.is_busy:
            raise RuntimeError("a transaction inside another one of the same thread")
        self.let_go_if_idle()  # the server or a proxy may have closed it since
        done = False
        try:
            own.connection = own.connection or self._connect()
            own.in_use = own.connection.connection.dbapi_connection
            own.is_busy = True
            yield own.connection
            done = True
        finally:
            own.is_busy = False
            own.used_at = time.monotonic()
            if not (done and own.shares):
                self._close(is_usable=done)

    def _drop_interrupted(self) -> None:
        """Close this thread's connection, whose transaction or end was interrupted, and begin with new ones.

        Ctrl-C or a signal's exception may come in the middle of SQLAlchemy's own clean-up. Then the connection would
        keep its lock, and its place in the pool, as long as a notebook holds the traceback.
        """
        own = self._own
        own.connection, own.is_busy = None, False
        self.disconnect()
        if own.in_use is not None:
            own.in_use.close()
            own.in_use = None

    def _connect(self) -> sa.Connection:
        """Connect. Try again for a while if the server cannot accept connections at the moment."""
        try:
            return self._tried(self._engine.connect, sa.exc.DBAPIError)
        except sa.exc.TimeoutError:
            raise self.unusable("other threads of this process use it", CatalogBusyError) from None

    def _close(self, *, is_usable: bool = True) -> None:
        """Close this thread's connection; a server's pool keeps it if it is usable."""
        connection, self._own.connection = self._own.connection, None
        if connection is None:
            return
        try:
            if self._connections == 1 or not is_usable:
                connection.invalidate()
            connection.close()
        except Exception:
            raise
        except BaseException:  # a `connected` block closes it outside of any transaction
            self._drop_interrupted()
            raise

    def _postgres_engine(self) -> sa.Engine:
        try:
            return postgres.make_engine(self.url, self._wait, self.answer_within, self._connections)
        except ModuleNotFoundError:
            hint = "run: pip install 'psycopg[binary]'"
            raise CatalogUnavailableError("no PostgreSQL driver is installed", hint) from None

    def _tried(self, action: Callable[[], T], error: type[Exception]) -> T:
        """The result of an action. It is tried again after transient errors, until a deadline."""
        deadline = time.monotonic() + self._wait
        backoff = Backoff(_LONGEST_PAUSE_SECONDS)
        while True:
            try:
                return action()
            except error as problem:
                passes = not isinstance(problem, sa.exc.DBAPIError) or postgres.passes(problem)
                if not passes or time.monotonic() > deadline:
                    raise
            time.sleep(backoff.pause())

    def unusable(
        self, reason: str, kind: type[CatalogUnavailableError] = CatalogUnavailableError, remedy: str = ""
    ) -> CatalogUnavailableError:
        """The error for a catalog that cannot be used, with what to do about it: `remedy`, if that is known."""
        if remedy:
            return kind(f"the catalog {self.name} refuses ({reason})", remedy)
        if (is_newer := _NO_COLUMN.search(reason)) or _NO_TABLE.search(reason):
            what = "has another schema by now" if is_newer else "lacks a table of ckptstore"
            make = f"check --db and CKPTSTORE_URL; to create it, or see what to do: {self.command('db', 'upgrade')}"
            return kind(f"the catalog {self.name} {what} ({reason})", "update ckptstore here" if is_newer else make)
        if self.file is None:
            hint = "check that the server runs and that --db or CKPTSTORE_URL names it"
            return kind(f"cannot reach the catalog {self.name} ({reason})", hint)
        rebuild = f"move the file away, then rebuild the catalog from the journals: {Command('scan', 'DIR')}"
        if "not a database" in reason:
            hint = f"give the file of one; if it was one and is damaged, {rebuild}"
            return kind(f"{self.name} is not a catalog", hint)
        if "malformed" in reason:
            return CatalogDamagedError(f"the catalog {self.name} is damaged ({reason})", rebuild)
        is_locked = "locked" in reason
        hint = "another process works on it: try again" if is_locked else sqlite.remedy(self.file, reason)
        return kind(f"cannot use the catalog {self.name} ({reason})", hint)

    def _unavailable(self, error: sa.exc.DBAPIError) -> CatalogUnavailableError:
        said = str(error.orig).strip().splitlines()
        reason = said[0] if said else type(error).__name__
        reason = reason.replace(str(self.url.password), "***") if self.url.password else reason
        if self.is_sqlite:
            return self.unusable(reason)
        passing = CatalogBusyError if postgres.passes(error) else CatalogUnavailableError
        kind = CatalogForbidsError if postgres.forbids(error) else passing
        return self.unusable(reason, kind, postgres.remedy(error))


class _Own(threading.local):
    """A thread's PostgreSQL connection, and when it was last used.

    `shares`: the transactions of a `connected` block share it. `is_busy`: a transaction is under way. `in_use` is the
    driver's connection of the transaction that is under way or was the last one, SQLite's too.
    """

    connection: sa.Connection | None = None
    in_use: Any = None
    used_at: float = 0.0
    shares: bool = False
    is_busy: bool = False


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _let_go() -> None:
    for database in list(_databases):
        database.let_go_before_fork()


def _leave_to_parent() -> None:
    for database in _databases:
        database.forget()


os.register_at_fork(before=_let_go, after_in_child=_leave_to_parent)


def open_database(url: str | os.PathLike[str] | None, *, connections: int = 1) -> Database:
    """Open the catalog that `url` names, else CKPTSTORE_URL, else the user's own SQLite file.

    `url` is an SQLAlchemy URL (`sqlite:////data/catalog.db`, `postgresql://user@host/name`) or the path of an
    SQLite file. `connections`: see `Database`. Raises `UsageError` for an invalid URL. Does not connect yet.
    """
    own = urls.users_own()
    named = urls.database_url(url)
    if named.database == str(own):
        with suppress(OSError):  # the first use reports it: a training goes on without a catalog
            own.parent.mkdir(parents=True, exist_ok=True)
    return Database(named, connections=connections)


def open_to_look(url: str | None, *, answer_within: float) -> Database:
    """Open the catalog that `open_database` would open, for callers that only read.

    A missing SQLite file is not created.
    """
    database = Database(urls.database_url(url), answer_within=answer_within)
    if database.file is not None:
        path = database.file.absolute()

        @sa.event.listens_for(database._engine, "do_connect")
        def _connect(*_: object) -> sqlite3.Connection:
            return sqlite.connect_to_look(path, min(answer_within, _WAIT_SECONDS))

    return database


def in_memory() -> Database:
    """An empty catalog in memory, with its schema. It lives as long as this object. Only one thread may use it."""
    database = Database(sa.URL.create("sqlite", database=":memory:"))
    with database.write() as connection:
        for statement in _schema():
            connection.exec_driver_sql(statement)
    return database


@cache
def _schema() -> tuple[str, ...]:
    """The statements that create the tables on SQLite. They are cached: compiling them takes longer than running."""
    made: list[str] = []
    dialect = sa.dialects.registry.load("sqlite")()
    engine = sa.create_mock_engine("sqlite://", lambda each, *_: made.append(str(each.compile(dialect=dialect))))
    metadata.create_all(engine, checkfirst=False)
    return tuple(made)


def clock(connection: sa.Connection) -> datetime:
    """The time of the PostgreSQL server, which is the same for all machines; for an SQLite file, of this machine."""
    if connection.dialect.name == "sqlite":
        return utc_now()
    now: datetime = connection.execute(sa.select(sa.func.clock_timestamp(type_=UtcDateTime))).scalar_one()
    return now
