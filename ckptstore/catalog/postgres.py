"""The part that only PostgreSQL needs: connecting, timeouts, transient errors.

PgBouncer may give each transaction another connection to the server (pgbouncer.org/features.html, "transaction
pooling"). So no session state outlives a transaction: limits are SET LOCAL, locks end with the transaction, and there
are no prepared statements.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from ckptstore.core.hints import Command
from ckptstore.outside import time

if TYPE_CHECKING:
    from collections.abc import Generator

    import psycopg

# A pipeline that ends after an error warns of it. That error is raised, and ckptstore has a line for it.
logging.getLogger("psycopg").addFilter(lambda record: not str(record.msg).startswith("error ignored terminating"))

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
"""SQLSTATEs of transient errors: the same transaction may succeed a moment later (postgresql.org, appendix A)."""

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
    "server login has been failing",  # PgBouncer: the server is unreachable
    "pgbouncer cannot connect to server",
)
"""Messages of failed connections: the driver has no SQLSTATE for them."""


_NO_RIGHT = "its user may not do that: use an operator's, for db upgrade the owner's (docs/postgresql.sql)"
_ANOTHERS = (
    "the run belongs to another login: name another run, or ask an operator for this one (docs/postgresql-rows.sql)"
)
_BUSY = "other processes keep it busy: try again"
_FORBIDDEN = "42501"  # insufficient_privilege
_REMEDIES = (
    (
        _FORBIDDEN,
        re.compile(r"permission denied for "),
        _NO_RIGHT,
    ),
    (
        "3F000",  # invalid_schema_name: a user without rights in a schema does not see it
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
    ("55P03", re.compile(r"due to lock timeout"), _BUSY),  # lock_not_available
    ("57014", re.compile(r"due to statement timeout"), _BUSY),  # query_canceled
    ("40", re.compile(r"deadlock detected|could not serialize"), _BUSY),  # transaction_rollback
)
"""Remedies if the server refuses: found by SQLSTATE, or by the message if connecting failed."""


def make_engine(url: sa.URL, wait: float, answer_within: float, connections: int) -> sa.Engine:
    """An engine with at most `connections`. Raises `ModuleNotFoundError` if the driver is not installed.

    More than one are kept open, and each is tested before it is used again.
    `wait` is how long to wait for a connection, `answer_within` for the answer to a statement, in seconds.
    """
    engine = sa.create_engine(
        url,
        poolclass=QueuePool,
        pool_size=connections,
        pool_pre_ping=connections > 1,
        max_overflow=0,
        pool_timeout=wait,
        use_native_hstore=False,  # else each process asks the server for a type that ckptstore does not use
        connect_args={
            "connect_timeout": max(2, round(wait)),
            "prepare_threshold": None,
            "autocommit": True,  # `opening` begins transactions: the driver's own BEGIN costs a round trip
            "fallback_application_name": "ckptstore",
        },
    )

    of = _connection_type(answer_within)

    @sa.event.listens_for(engine, "do_connect")
    def _connect(_dialect: object, _record: object, given: list[Any], named: dict[str, Any]) -> psycopg.Connection:
        return of.connect(*given, **named)

    return engine


def opening(wait: float, *, writes: bool) -> str:
    """The statements that begin a transaction, with limits for it alone: a pooler may give its connection to others.

    `wait` is how long to wait for a lock, in seconds; a statement may take six times as long.
    """
    milliseconds = round(wait * 1000)
    begin = "BEGIN" if writes else "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
    return f"{begin}; SET LOCAL lock_timeout = {milliseconds}; SET LOCAL statement_timeout = {6 * milliseconds}"


def passes(error: sa.exc.DBAPIError) -> bool:
    """Whether an error is transient: another transaction was served first, or the server ended the connection.

    A refused connection is not transient: the server may be down for long.
    """
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state in _PASSING_STATES or state.startswith("08")  # connection_exception
    said = str(error.orig)
    if _UNANSWERED in said:
        return False
    return error.connection_invalidated or any(refusal in said for refusal in _PASSING_REFUSALS)


def forbids(error: sa.exc.DBAPIError) -> bool:
    """Whether the server answered that the login has no right to do this."""
    return getattr(error.orig, "sqlstate", None) == _FORBIDDEN


def remedy(error: sa.exc.DBAPIError) -> str:
    """What to do if the server answered and refused; empty for other errors."""
    state, said = getattr(error.orig, "sqlstate", None), str(error.orig)
    if "row-level security" in said:
        return _ANOTHERS
    for begin, words, what_to_do in _REMEDIES:
        if state.startswith(begin) if state else words.search(said):
            return what_to_do
    return ""


_UNANSWERED = "it did not answer in "


def _connection_type(answer_within: float) -> type[psycopg.Connection]:
    """A connection class that gives up if the answer to a statement takes longer than `answer_within` seconds.

    The server's own limits do not help if its process is stopped: its kernel goes on answering keepalives.
    """
    import psycopg  # noqa: PLC0415 — it need not be installed

    def bounded(answer: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        deadline = time.monotonic() + answer_within
        try:
            wanted = next(answer)
            while True:
                ready = yield wanted  # psycopg sends nothing, a few times a second, if no answer came
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
                    self.pgconn.finish()  # else the rollback waits for an answer too
                raise
            except (KeyboardInterrupt, SystemExit):  # else the end of a pipeline fails, and its error takes the place
                self.pgconn.finish()
                with suppress(psycopg.Error):
                    gen.close()
                raise

    return Bounded
