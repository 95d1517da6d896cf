"""Opens the catalog's database: SQLite or PostgreSQL, by URL."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from platformdirs import user_data_path
from sqlalchemy.pool import NullPool

from ckptstore.catalog.tables import metadata
from ckptstore.errors import CatalogUnavailableError, UsageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

_WAIT_SECONDS = 10
_ANSWER_SECONDS = 120.0
_SECRET_KEYS = ("password", "sslpassword", "passfile")
_FILE = "file"
_WRITES = "ckptstore_writes"
_URL_HINT = "use sqlite:////path/catalog.db or postgresql://user@host/name"
_LIKE_A_URL = re.compile(r"^\w+:|:[^/]*@|\b(host|dbname|user|password)\s*=")


class Database:
    """One catalog database. Transactions are opened here, by the use cases, and nowhere else.

    `answer_within` is how long to wait for a connection, for a lock and for the answer to a statement, in seconds:
    for the first two 10 at most.
    """

    def __init__(self, url: sa.URL, *, answer_within: float = _ANSWER_SECONDS) -> None:
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.answer_within = answer_within
        wait = min(answer_within, _WAIT_SECONDS)
        self._engine = _sqlite_engine(url, wait) if self.is_sqlite else _postgres_engine(url, wait)
        os.register_at_fork(after_in_child=lambda: self._engine.dispose(close=False))

    @property
    def name(self) -> str:
        """Where the catalog is, for messages: never with a password."""
        return _shown(self.url)

    @property
    def file(self) -> Path | None:
        """The SQLite file; None on PostgreSQL."""
        return Path(self.url.database) if self.is_sqlite and self.url.database else None

    def disconnect(self) -> None:
        """Close the connections that nobody uses; the next transaction opens one."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the catalog and changes nothing."""
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that is committed at the end of the block, or rolled back by an exception."""
        with self._transaction(writes=True) as connection:
            yield connection

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[sa.Connection]:
        guard: _Guard | None = None
        try:
            with self._engine.connect().execution_options(**{_WRITES: writes}) as connection:
                if not self.is_sqlite:
                    guard = _Guard(connection, self.answer_within)
                with guard or nullcontext(), connection.begin():
                    yield connection
        except sa.exc.DBAPIError as error:  # a broken constraint too: the catalog was replaced by another
            if guard is not None and guard.is_over:
                raise self.unusable(f"it did not answer in {self.answer_within:g} s") from error
            raise self._unavailable(error) from error

    def unusable(self, reason: str) -> CatalogUnavailableError:
        """The error for a catalog that cannot be used, with what to do about it."""
        if self.file is None:
            hint = "check that the server runs and that --db or CKPTSTORE_URL names it"
            return CatalogUnavailableError(f"cannot reach the catalog {self.name} ({reason})", hint)
        if "not a database" in reason:
            return CatalogUnavailableError(f"{self.name} is not a catalog", "give the file of one, or a new name")
        folder = self.file.absolute().parent
        if folder.is_dir():
            hint = f"check that {folder} can be written to, or give another --db"
        else:
            hint = f"there is no directory {folder}: create it, or give another --db"
        return CatalogUnavailableError(f"cannot use the catalog {self.name} ({reason})", hint)

    def _unavailable(self, error: sa.exc.DBAPIError) -> CatalogUnavailableError:
        said = str(error.orig).strip().splitlines()
        return self.unusable(_without_secrets(said[0] if said else type(error).__name__, self.url))


class _Guard:
    """Closes a connection whose server does not answer a statement in time.

    The server's own limits are of no use where it is stopped, and the network keeps such a connection open for ever.
    """

    def __init__(self, connection: sa.Connection, seconds: float) -> None:
        self.is_over = False
        self._seconds = seconds
        self._file = connection.connection.driver_connection.fileno()  # type: ignore[union-attr]
        self._timer: threading.Timer | None = None
        sa.event.listen(connection, "before_cursor_execute", self._again)

    def __enter__(self) -> None:
        self._again()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # it must not close a file of that number that is another one by then

    def _again(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(self._seconds, self._close)
        self._timer.daemon = True
        self._timer.start()

    def _close(self) -> None:
        self.is_over = True
        with socket.socket(fileno=os.dup(self._file)) as shared, suppress(OSError):
            shared.shutdown(socket.SHUT_RDWR)


def open_database(url: str | None) -> Database:
    """Open the catalog that `url` names, else CKPTSTORE_URL, else the user's own SQLite file.

    `url` is an SQLAlchemy URL (`sqlite:////data/catalog.db`, `postgresql://user@host/name`) or the path of an
    SQLite file. Raises `UsageError` for a URL that cannot be meant. Nothing is connected to yet.
    """
    own = _users_own()
    meant = _meant(url, own)
    if meant.database == str(own):
        with suppress(OSError):  # what cannot be made is said when it is used: a training goes on without a catalog
            own.parent.mkdir(parents=True, exist_ok=True)
    return Database(meant)


def open_to_look(url: str | None, *, answer_within: float) -> Database:
    """The catalog that `open_database` would open, for who changes nothing, and makes nothing either.

    An SQLite file that is not there stays so. One that others use is opened for reading only; else SQLite keeps its own
    two files beside it while it is read, and takes them away again.
    """
    database = Database(_meant(url, _users_own()), answer_within=answer_within)
    if database.file is not None:
        path = database.file.absolute()

        @sa.event.listens_for(database._engine, "do_connect")
        def _connect(*_: object) -> sqlite3.Connection:
            return _connect_to_look(path, min(answer_within, _WAIT_SECONDS))

    return database


def _connect_to_look(path: Path, wait: float) -> sqlite3.Connection:
    import sqlite3  # noqa: PLC0415

    # What is left of a log is taken into the file by whoever closes it last, unless he only reads.
    mode = "ro" if Path(f"{path}-wal").exists() or not os.access(path, os.W_OK) else "rw"
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=wait, check_same_thread=False)
    connection.execute("PRAGMA query_only=ON")
    return connection


def _meant(url: str | None, own: Path) -> sa.URL:
    text = url or os.environ.get("CKPTSTORE_URL") or ""
    if not text:
        return sa.URL.create("sqlite", database=str(own))
    if "://" not in text:
        return sa.URL.create("sqlite", database=str(_as_path(text)))
    return _parse(text)


def in_memory() -> Database:
    """An empty catalog, with its schema, that lives as long as this object; for one thread."""
    database = Database(sa.URL.create("sqlite", database=":memory:"))
    with database.write() as connection:
        metadata.create_all(connection)
    return database


def _users_own() -> Path:
    return user_data_path("ckptstore", appauthor=False) / "catalog.db"


def _as_path(text: str) -> Path:
    """The path of an SQLite file; what looks like a mistyped URL may hold a password, and is not repeated."""
    if _LIKE_A_URL.search(text):
        raise UsageError("the catalog is neither a URL nor the path of a file", _URL_HINT)
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise UsageError(f"{text} names a home that there is not", "give the whole path") from None


def _parse(text: str) -> sa.URL:
    hint = _URL_HINT
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise UsageError("the catalog's URL cannot be read", hint) from None
    backend = url.get_backend_name()
    if backend == "sqlite":
        if not url.database or url.database == ":memory:":
            raise UsageError("an SQLite catalog needs a file: other processes must see it", hint)
        if url.query:
            raise UsageError("the URL of an SQLite catalog takes no options", hint)
        return url.set(drivername="sqlite")
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    raise UsageError(f"a catalog cannot be on {backend!r}", hint)


def _from_json(text: str) -> Any:
    """As `json.loads`; most rows have no metrics, and a wide job has many rows."""
    return {} if text == "{}" else json.loads(text)


def _sqlite_engine(url: sa.URL, wait: float) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": wait}, json_deserializer=_from_json)
    path = str(url.database)

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, record: Any) -> None:
        record.info[_FILE] = _identity(path)
        connection.isolation_level = None  # transactions are ours to begin, see _begin
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "checkout")
    def _look_at_the_file(_connection: sqlite3.Connection, record: Any, _proxy: Any) -> None:
        # An open connection goes on writing to a file that was deleted or replaced, and nobody hears of it.
        if record.info[_FILE] != _identity(path):
            raise sa.exc.DisconnectionError(f"{path} is another file now")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A transaction that reads first and writes later cannot be made to wait: it must take the lock at once.
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is at a path; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 — at every transaction
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _postgres_engine(url: sa.URL, wait: float) -> sa.Engine:
    try:
        engine = sa.create_engine(
            url,
            poolclass=NullPool,  # a thousand ranks must not hold a thousand idle connections
            connect_args={"connect_timeout": max(2, round(wait)), "prepare_threshold": None},
        )
    except ModuleNotFoundError:
        raise CatalogUnavailableError(
            "no PostgreSQL driver is installed", "run: pip install 'ckptstore[postgres]'"
        ) from None

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # For this transaction only: a pooler between us and the server hands the connection on after it.
        milliseconds = round(wait * 1000)
        limits = f"SET LOCAL lock_timeout = {milliseconds}; SET LOCAL statement_timeout = {6 * milliseconds}"
        connection.exec_driver_sql(limits)

    return engine


def _shown(url: sa.URL) -> str:
    hidden = {key: "***" for key in url.query if key in _SECRET_KEYS}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _without_secrets(text: str, url: sa.URL) -> str:
    secrets = [
        str(url.password or ""),
        *(str(value) for key, value in url.query.items() if key in _SECRET_KEYS),
    ]
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text
