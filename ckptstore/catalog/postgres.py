"""PostgreSQL's own part: connecting, timeouts, and the errors that pass by themselves.

Nothing of a session outlives a transaction, so that PgBouncer may give each transaction another connection to the
server (pgbouncer.org/features.html, "transaction pooling"): limits are SET LOCAL, locks are the transaction's, and
nothing is prepared.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from ckptstore.core.hints import Command
from ckptstore.outside import time

if TYPE_CHECKING:
    from collections.abc import Generator

    import psycopg

_PASSING_STATES = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "53300",  # too_many_connections
        "57P01",  # admin_shutdown: the server stops, or pg_terminate_backend
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now: it is starting
        "57P05",  # idle_session_timeout
        "25P03",  # idle_in_transaction_session_timeout
    }
)
"""SQLSTATEs of what the same transaction may do without a moment later (postgresql.org, appendix A)."""

_PASSING_REFUSALS = (
    "too many clients already",
    "remaining connection slots are reserved",
    "too many connections for ",
    "database system is starting up",
    "database system is shutting down",
    "database system is in recovery mode",
    "database system is not yet accepting connections",
    "server closed the connection unexpectedly",
    "terminating connection due to administrator command",
    "no more connections allowed",  # PgBouncer: max_client_conn
    "query_wait_timeout",  # PgBouncer: no connection to the server was free
    "server login has been failing",  # PgBouncer: the server is away
    "pgbouncer cannot connect to server",
)
"""Messages of failed connections: the driver has no SQLSTATE for them."""


_NO_RIGHT = "its user may not do that: use an operator's, for db upgrade the owner's (docs/postgresql.sql)"
_REMEDIES = (
    (
        "42501",  # insufficient_privilege
        re.compile(r"permission denied for "),
        _NO_RIGHT,
    ),
    (
        "3F000",  # invalid_schema_name: to who has no right in a schema, there is none
        re.compile(r"no schema has been selected"),
        _NO_RIGHT,
    ),
    (
        "53300",  # too_many_connections
        re.compile(r"too many (clients|connections)|remaining connection slots|no more connections allowed"),
        "allow more connections: max_connections of the server, the role's limit, or a pooler as PgBouncer",
    ),
    (
        "28",  # invalid_authorization_specification, invalid_password
        re.compile(r'authentication failed|no password supplied|role ".*" does not exist|pg_hba\.conf|no such user'),
        "check the user and the password (PGPASSFILE or PGPASSWORD), and whom the server's pg_hba.conf lets in",
    ),
    (
        "3D000",  # invalid_catalog_name
        re.compile(r'database ".*" does not exist|no such database'),
        f"create the database, then: {Command('db', 'upgrade')}; or give the right name of it",
    ),
    (
        "25006",  # read_only_sql_transaction
        re.compile(r"in a read-only transaction"),
        "it takes no writes, as a standby: name the primary",
    ),
)
"""What to do where a server answers and refuses: by SQLSTATE, or by what it says where no connection comes about."""


def make_engine(url: sa.URL, wait: float, answer_within: float, connections: int) -> sa.Engine:
    """An engine with at most so many connections. Raises `ModuleNotFoundError` where the driver is not installed.

    Where there are several, they are kept open, and each is tested before it is used again.
    `wait` is how long to wait for a connection, `answer_within` for the answer to a statement, in seconds.
    """
    engine = sa.create_engine(
        url,
        poolclass=QueuePool,
        pool_size=connections,
        pool_pre_ping=connections > 1,
        max_overflow=0,
        pool_timeout=wait,
        use_native_hstore=False,  # else each process asks for a type that nobody has here
        connect_args={
            "connect_timeout": max(2, round(wait)),
            "prepare_threshold": None,
            "autocommit": True,  # a transaction is begun with its limits, see `opening`: the driver would ask twice
            "fallback_application_name": "ckptstore",
        },
    )

    of = _connection_type(answer_within)

    @sa.event.listens_for(engine, "do_connect")
    def _connect(_dialect: object, _record: object, given: list[Any], named: dict[str, Any]) -> psycopg.Connection:
        return of.connect(*given, **named)

    return engine


def opening(wait: float, *, writes: bool) -> str:
    """How a transaction begins, with limits of its own: a pooler hands its connection on after it.

    `wait` is how long to wait for a lock, in seconds.
    """
    milliseconds = round(wait * 1000)
    begin = "BEGIN" if writes else "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
    return f"{begin}; SET LOCAL lock_timeout = {milliseconds}; SET LOCAL statement_timeout = {6 * milliseconds}"


def passes(error: sa.exc.DBAPIError) -> bool:
    """Whether the same may work a moment later: another was served first, or the server ended the connection.

    A refused connection is not among them: that may last.
    """
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state in _PASSING_STATES or state.startswith("08")  # connection_exception
    said = str(error.orig)
    if _UNANSWERED in said:
        return False
    return error.connection_invalidated or any(refusal in said for refusal in _PASSING_REFUSALS)


def remedy(error: sa.exc.DBAPIError) -> str:
    """What to do about a server that is there and refuses; empty where that is not what happened."""
    state, said = getattr(error.orig, "sqlstate", None), str(error.orig)
    for begin, words, what_to_do in _REMEDIES:
        if state.startswith(begin) if state else words.search(said):
            return what_to_do
    return ""


_UNANSWERED = "it did not answer in "


def _connection_type(answer_within: float) -> type[psycopg.Connection]:
    """Connections that are given up if the answer to a statement takes longer than so many seconds.

    The server's own limits are of no use where it is stopped, and its kernel goes on answering keepalives.
    """
    import psycopg  # noqa: PLC0415 — it need not be installed

    def bounded(answer: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        deadline = time.monotonic() + answer_within
        try:
            wanted = next(answer)
            while True:
                ready = yield wanted  # nothing, a few times a second, where nothing came
                if not ready and time.monotonic() > deadline:
                    raise psycopg.OperationalError(f"{_UNANSWERED}{answer_within:g} s")
                wanted = answer.send(ready)
        except StopIteration as done:
            return done.value

    class Bounded(psycopg.Connection[Any]):
        def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
            try:
                return super().wait(bounded(gen), *args, **options)
            except psycopg.OperationalError as error:
                if _UNANSWERED in str(error):
                    self.pgconn.finish()  # else what ends the transaction waits for an answer too
                raise

    return Bounded
