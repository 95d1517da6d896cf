"""SQLite for simulated programs: each statement and each commit is a call to the outside.

SQLAlchemy takes four times as long as SQLite to run a statement. So the engine here takes a shortcut: all programs and
histories share the compiled statements, and simple classes replace SQLAlchemy's pool and results.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine.row import Row

from ckptstore.catalog import schema
from ckptstore.catalog.engine import Database
from ckptstore.catalog.tables import metadata
from ckptstore.catalog.urls import database_url

if TYPE_CHECKING:
    from tests.world.machine import Machine

REAL = "/dev/shm/ckptstore-world"  # noqa: S108 — where SQLite's files are
_FOREIGN_KEYS = "PRAGMA foreign_keys=ON"
_NEEDLESS = (_FOREIGN_KEYS, "PRAGMA synchronous", "PRAGMA busy_timeout")
"""Statements that are not run. Each session sets the foreign keys once. The others have no effect here: no program
waits for a disk or for another thread."""
_STATEMENTS = 1000  # statements that SQLite keeps compiled
_ADAPTS = {"_result_disable_adapt_to_context": True}  # the package reads no row by an expression of its statement
_create_engine = sa.create_engine


@cache
def template() -> str:
    """A new catalog, made once before the simulation begins: to make its schema takes longer than a history."""
    os.makedirs(REAL, exist_ok=True)
    path = f"{REAL}/new-{os.getpid()}.db"
    with suppress(FileNotFoundError):
        os.unlink(path)
    database = Database(database_url(path))
    schema.ensure(database)
    database.disconnect()
    return path


_spare: dict[str, Session] = {}
"""Sessions of earlier histories, by path. They are reused, because they keep their compiled statements."""


class Catalogs:
    """The SQLite files of a machine, and the sessions on them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.away: set[str] = set()
        self._sessions: dict[str, set[Session]] = {}
        self._idle: dict[str, list[Session]] = {}

    def make(self, path: str) -> None:
        """Make a new catalog. If an earlier history left one, empty it: that is quicker than a new file."""
        idle = self._idle.setdefault(path, [])
        if path in _spare:
            session = _spare.pop(path)
            session.catalogs = self
            self._sessions[path] = {session}
            idle.append(session)
        if not idle or not idle[0].is_emptied():
            self.replace(path, template())

    def replace(self, path: str, source: str) -> None:
        """Replace the file at `path` by a copy of `source`."""
        self.forget(path)
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{path}{suffix}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(source, path)

    def connect(self, path: str) -> Connection:
        """A connection of the current program."""
        if path in self.away:
            raise sqlite3.OperationalError("unable to open database file")
        connection = Connection(self, path)
        self.machine.program().connections.append(connection)
        return connection

    def session(self, path: str) -> Session:
        """A session that no program uses, perhaps a new one."""
        idle = self._idle.get(path)
        if idle:
            return idle.pop()
        session = sqlite3.connect(path, 0, 0, None, False, Session, _STATEMENTS)  # noqa: FBT003
        session.catalogs, session.path = self, path
        session.execute(_FOREIGN_KEYS)
        self._sessions.setdefault(path, set()).add(session)
        return session

    def leave(self, session: Session) -> None:
        if session.in_transaction or session not in self._sessions.get(session.path, ()):
            session.rollback()  # close() does not end the transaction if a killed program left an open cursor
            session.close()
        else:
            self._idle.setdefault(session.path, []).append(session)

    def forget(self, path: str) -> None:
        """Close the sessions of a file that is about to be replaced."""
        self._sessions.pop(path, None)
        for session in self._idle.pop(path, ()):
            session.close()

    def close(self) -> None:
        for path in list(self._sessions):
            idle = self._idle.get(path)
            if idle:
                _spare[path] = idle.pop(0)
            self.forget(path)

    def ask(self, path: str) -> None:
        """The hook before each statement. Raises if the catalog is unreachable."""
        if self.machine.current is not None:
            if path in self.away:
                raise sqlite3.OperationalError("disk I/O error")
            self.machine.call("sql", "sql")

    def engine(self, url: sa.URL, connect_args: dict[str, Any]) -> sa.Engine:
        """The replacement of `sqlalchemy.create_engine`."""
        first = _first_engine()
        path = str(url.database)
        if path == ":memory:":
            engine = _create_engine(url, connect_args=connect_args)
            engine.dialect = engine.pool._dialect = first.dialect
        else:
            pool = sa.QueuePool(lambda: self.connect(path), dialect=first.dialect)
            engine = Engine(pool, first.dialect, url, execution_options=_ADAPTS)
        engine._compiled_cache = first._compiled_cache
        return engine


@cache
def _first_engine() -> sa.Engine:
    engine = _create_engine("sqlite://")
    engine.connect().close()
    return engine


class Cursor(sqlite3.Cursor):
    """A cursor whose statements are calls to the outside."""

    connection: Session

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        session = self.connection
        session.catalogs.ask(session.path)
        return super().execute(statement, *parameters)

    def executemany(self, statement: str, parameters: Any) -> sqlite3.Cursor:
        session = self.connection
        session.catalogs.ask(session.path)
        return super().executemany(statement, parameters)


class Session(sqlite3.Connection):
    """SQLite's own connection. Programs reuse it, because a new connection must read the schema first."""

    catalogs: Catalogs
    path: str

    def is_emptied(self) -> bool:
        """Delete all rows; whether that was possible. It is not while another transaction is open."""
        try:
            self.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        for table in reversed(metadata.sorted_tables):
            self.execute(f"DELETE FROM {table.name}")
        self.commit()
        return True


class Connection:
    """A program's connection to a catalog. It is closed when the program ends."""

    __slots__ = ("_catalogs", "_is_closed", "_path", "_session", "isolation_level")

    def __init__(self, catalogs: Catalogs, path: str) -> None:
        self._catalogs = catalogs
        self._path = path
        self._is_closed = False
        self._session: Session | None = catalogs.session(path)
        self.isolation_level: str | None = None  # as in all sessions

    @property
    def session(self) -> Session:
        if self._session is None:
            if self._is_closed:
                raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
            self._session = self._catalogs.session(self._path)
        return self._session

    def rest(self) -> None:
        """Give the session back until the next statement."""
        session, self._session = self._session, None
        if session is not None:
            self._catalogs.leave(session)

    def cursor(self) -> Cursor:
        return self.session.cursor(Cursor)

    def execute(self, statement: str, *parameters: Any) -> Any:
        if statement.startswith(_NEEDLESS):  # if foreign keys are set again, SQLite compiles all statements again
            return None
        return self.session.execute(statement, *parameters)

    def commit(self) -> None:
        session = self.session
        if session.in_transaction:
            machine = self._catalogs.machine
            machine.call("commit", "sql")
            session.commit()
            machine.after("commit", "sql")

    def rollback(self) -> None:
        if self._session is not None:
            self._session.rollback()

    def close(self) -> None:
        self._is_closed = True
        self.rest()


class _Proxied:
    """Stands for SQLAlchemy's proxy of a driver's connection."""

    __slots__ = ("cursor", "dbapi_connection", "info", "rollback")
    is_valid = True

    def __init__(self, connection: Connection) -> None:
        self.dbapi_connection = connection
        self.cursor, self.rollback = connection.cursor, connection.rollback
        self.info: dict[str, Any] = {}


class Engine(sa.Engine):
    """An engine of SQLAlchemy with a simple pool."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._idle: list[_Proxied] = []

    def connect(self) -> sa.Connection:
        try:
            return _Connection(self, self._checked_out())
        except sqlite3.Error as error:
            raise _wrapped(error, None, None) from error

    def dispose(self, close: bool = True) -> None:  # noqa: FBT001, FBT002
        idle, self._idle = self._idle, []
        for each in idle if close else ():
            each.dbapi_connection.close()

    def _checked_out(self) -> _Proxied:
        dispatch = self.pool.dispatch
        while True:
            if self._idle:
                proxied = self._idle.pop()
            else:
                proxied = _Proxied(self.pool._creator())
                for prepare in dispatch.connect:
                    prepare(proxied.dbapi_connection, proxied)
            try:
                for look in dispatch.checkout:
                    look(proxied.dbapi_connection, proxied, proxied)
            except sa.exc.DisconnectionError:
                proxied.dbapi_connection.close()
            else:
                return proxied


class _Connection(sa.Connection):
    """A connection of SQLAlchemy. Only the first execution of a statement goes through SQLAlchemy."""

    def __init__(self, engine: Engine, proxied: _Proxied) -> None:
        self.engine: Any = engine
        self.dialect = engine.dialect
        self._dbapi_connection: Any = proxied
        self._execution_options = engine._execution_options
        self._transaction = self._nested_transaction = None
        self._Connection__in_begin = False
        self._Connection__can_reconnect = False
        self._allow_autobegin = True
        self._has_events = self._echo = False

    @property
    def info(self) -> Any:
        return self._dbapi_connection.info

    def begin(self) -> Any:
        return _Transaction(self._dbapi_connection.dbapi_connection)

    def close(self) -> None:
        self._transaction = None
        proxied = self._dbapi_connection
        proxied.dbapi_connection.rollback()
        proxied.dbapi_connection.rest()
        self.engine._idle.append(proxied)

    def exec_driver_sql(self, statement: str, *_: Any, **__: Any) -> Any:
        return _run(self._dbapi_connection, statement, None, None)

    def execute(self, statement: Any, parameters: Any = None, **options: Any) -> Any:
        if not isinstance(statement, (sa.sql.expression.SelectBase, sa.sql.expression.UpdateBase)):
            return super().execute(statement, parameters, **options)
        given: Sequence[Mapping[str, Any]] = (
            () if not parameters else [parameters] if isinstance(parameters, dict) else list(parameters)
        )
        keys = (len(given) > 1, *(given[0] if given else ()))
        plans = _plans.setdefault(statement, {})
        plan = plans.get(keys)
        if plan is None:
            plan, result = self._planned(statement, parameters, given, options)
            if not plan.is_long:
                plans[keys] = plan
            return result
        values = [plan.bound(each) for each in given or ({},)]
        return _run(self._dbapi_connection, plan.text, values if len(given) > 1 else values[0], plan)

    def _planned(self, statement: Any, parameters: Any, given: Sequence[Mapping[str, Any]], options: Any) -> Any:
        compiled: Any
        compiled, extracted, collected, _ = statement._compile_w_cache(
            self.dialect,
            compiled_cache=self.engine._compiled_cache,
            column_keys=sorted(given[0]) if given else [],
            for_executemany=len(given) > 1,
        )
        result = super().execute(statement, parameters, **options)
        return _Plan(compiled, result, extracted, collected), result


class _Transaction:
    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is not None:
                self._connection.rollback()
                return
            try:
                self._connection.commit()
            except BaseException:
                self._connection.rollback()
                raise
        except sqlite3.Error as problem:
            raise _wrapped(problem, None, None) from problem


_plans: WeakKeyDictionary[Any, dict[tuple[Any, ...], _Plan]] = WeakKeyDictionary()
"""The plans, by statement (the package makes each statement once) and by the names of its parameters."""


class _Plan:
    """A statement as SQLAlchemy compiled it: its text, the order of its parameters, the processors of its rows."""

    __slots__ = ("_values", "is_long", "row", "text")

    def __init__(self, compiled: Any, result: Any, extracted: Any, collected: Any) -> None:
        self.text: str = compiled.string
        self.is_long = bool(
            compiled.insert_prefetch
            or compiled.update_prefetch
            or compiled.literal_execute_params
            or compiled.post_compile_params
            or (compiled.for_executemany and compiled._insertmanyvalues)
        )
        processors: Mapping[str, Callable[[Any], Any]] = compiled._bind_processors
        fixed = compiled.construct_params(
            None, extracted_parameters=extracted, escape_names=False, _check=False, _collected_params=collected
        )
        is_given = {name for bind, name in compiled.bind_names.items() if bind.required}
        self._values = [
            (
                name,
                process,
                name in is_given,
                fixed[name] if process is None or name in is_given else process(fixed[name]),
            )
            for name in ([] if self.is_long else compiled.positiontup or ())
            for process in (processors.get(name),)
        ]
        self.row: tuple[Any, Any, Any] | None = None
        if result.returns_rows:
            metadata = result._metadata
            self.row = metadata, metadata._effective_processors, metadata._key_to_index

    def bound(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of all parameters: the fixed ones of the statement, and the given ones."""
        return tuple(
            [
                value if not is_given else given[name] if process is None else process(given[name])
                for name, process, is_given, value in self._values
            ]
        )


def _run(proxied: _Proxied, text: str, values: Any, plan: _Plan | None) -> _Rows:
    try:
        cursor = proxied.cursor()
        if values is None:
            cursor.execute(text)
        elif type(values) is list:
            cursor.executemany(text, values)
        else:
            cursor.execute(text, values)
        found = cursor.fetchall() if cursor.description else []
        count = cursor.rowcount
        cursor.close()
    except sqlite3.Error as error:
        raise _wrapped(error, text, values) from error
    if plan is None or plan.row is None:
        return _Rows(found, count)
    metadata, processors, places = plan.row
    return _Rows([Row(metadata, processors, places, each) for each in found], count)


def _wrapped(error: sqlite3.Error, text: str | None, values: Any) -> BaseException:
    dialect = SimpleNamespace(dbapi_exception_translation_map={})
    return sa.exc.DBAPIError.instance(text, values, error, sqlite3.Error, dialect=dialect)  # type: ignore[call-overload,no-any-return]


class _Rows:
    """Rows with the methods of SQLAlchemy's result."""

    __slots__ = ("_rows", "rowcount")

    def __init__(self, rows: list[Any], count: int = -1) -> None:
        self._rows = rows
        self.rowcount = count

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def all(self) -> list[Any]:
        return self._rows

    def partitions(self, _: int) -> Iterable[list[Any]]:
        return [self._rows] if self._rows else []

    def first(self) -> Any:
        return self._rows[0] if self._rows else None

    def one_or_none(self) -> Any:
        if len(self._rows) > 1:
            raise sa.exc.MultipleResultsFound
        return self.first()

    def one(self) -> Any:
        if not self._rows:
            raise sa.exc.NoResultFound
        return self.one_or_none()

    def scalars(self) -> _Rows:
        return _Rows([row[0] for row in self._rows])

    def scalar(self) -> Any:
        return self._rows[0][0] if self._rows else None

    def scalar_one(self) -> Any:
        return self.one()[0]
