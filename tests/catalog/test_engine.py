"""Opening a catalog: what URLs mean, and what is said when it does not work."""

import contextlib
import os
import random
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog, connect
from ckptstore.catalog import engine, sqlite
from ckptstore.catalog.engine import Database, open_database
from ckptstore.errors import CatalogBusyError, CatalogUnavailableError, UsageError
from tests.conftest import new_postgres_database
from tests.jobs import begun


def test_which_catalog_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path or a URL names it, else the environment, else it is the user's own."""
    monkeypatch.delenv("CKPTSTORE_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert open_database(None).file == tmp_path / "ckptstore" / "catalog.db"
    monkeypatch.setenv("CKPTSTORE_URL", str(tmp_path / "a.db"))
    assert open_database(None).file == tmp_path / "a.db"
    monkeypatch.setenv("CKPTSTORE_URL", f"{tmp_path}/a.db\n")  # of a Secret that was made from a file
    assert open_database(None).file == tmp_path / "a.db"
    assert open_database(tmp_path / "c.db").file == tmp_path / "c.db"
    assert open_database(f"sqlite:///{tmp_path}/b.db").file == tmp_path / "b.db"


def test_a_catalog_is_named_as_it_is_written() -> None:
    """Of our driver no other program knows, such as psql."""
    told = "postgresql://trainer:***@db.example/ckptstore"
    assert open_database("postgresql://trainer:s3cret@db.example/ckptstore?sslmode=require").name == told


def test_two_schemas_of_one_database_are_two_catalogs(postgres: str, tmp_path: Path) -> None:
    """A run of the second one went on from the states of the first one's run before."""
    url = new_postgres_database(postgres)
    with open_database(url).write() as connection:
        connection.exec_driver_sql("CREATE SCHEMA a; CREATE SCHEMA b")
    first, second = (connect(f"{url}&options=-c%20search_path%3D{schema}") for schema in "ab")
    begun(first, tmp_path / "data", 5, world_size=1)
    assert second.join("run").resolve() is None
    assert len(connect(first.database.name).runs()) == 1


SLASHES = "three slashes before a path from here, four before a whole one"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://tmp/c.db", SLASHES),
        ("sqlite://secret@/c.db", SLASHES),
        ("sqlite://u:secret@h/c.db", SLASHES),
        ("sqlite://:5/c.db", SLASHES),
        ("mysql://u:secret@h/d", "cannot be on 'mysql'"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("://", "cannot be read"),
        ("nonsense://x", "cannot be on 'nonsense'"),
        ("postgresql://u@h/d?sslpassword=secret", "holds the password of a key"),
    ],
)
def test_urls_that_cannot_be_meant(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        open_database(url)
    assert "secret" not in str(caught.value)


def test_a_schema_that_a_newer_program_changed_under_this_one_is_named_as_that(catalog: Catalog) -> None:
    with catalog.database.write() as connection:
        connection.execute(sa.text("ALTER TABLE saves RENAME COLUMN global_step TO step"))
    with (
        pytest.raises(CatalogUnavailableError, match=r"has another schema by now \(.*\); update ckptstore here"),
        catalog.database.write() as connection,
    ):
        connection.execute(sa.text("UPDATE saves SET global_step = 1"))


def test_a_write_that_comes_first_on_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, but long enough to be looked at\n" * 50)
    for is_kept in (False, True):
        with pytest.raises(CatalogUnavailableError, match="is not a catalog; .* rebuild the catalog from the journals"):
            open_database(path).in_write(lambda _: None, is_kept=is_kept)


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_write_that_comes_first_on_a_locked_file(sqlite_url: str, mode: str) -> None:
    connect(sqlite_url).database.disconnect()
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute(f"PRAGMA journal_mode={mode}")
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with contextlib.closing(other):
        for is_kept in (False, True):
            with pytest.raises(CatalogUnavailableError, match="locked"):
                Database(sa.make_url(sqlite_url), answer_within=0.1).in_write(lambda _: None, is_kept=is_kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as somebody else")
def test_who_acts_as_another_user_is_told_what_that_one_may_not(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    connect(str(tmp_path / "closed" / "c.db"))
    os.seteuid(61001)
    try:
        with pytest.raises(CatalogUnavailableError, match="check that this user may enter "):
            open_database(tmp_path / "closed" / "c.db").in_write(lambda _: None)
    finally:
        os.seteuid(0)


class Turns:
    """A clock that moves by a second a pause; then another process ends its transaction, and begins one more."""

    def __init__(self, path: str, *, commits: bool, pauses: int) -> None:
        self.now = 0
        self.longest = 0.0
        self._other = sqlite3.connect(path, isolation_level=None)
        self._other.execute("BEGIN IMMEDIATE")
        self._commits, self._pauses = commits, pauses

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1
        self.longest = max(self.longest, seconds)
        if self._commits or self.now == self._pauses:
            self._other.execute(f"INSERT INTO runs (name) VALUES ('{self.now}')")
            self._other.execute("COMMIT")
            if self.now != self._pauses:
                self._other.execute("BEGIN IMMEDIATE")


@pytest.mark.parametrize(("commits", "pauses", "gives_up_after"), [(True, 25, None), (False, 25, 3), (True, 99, 30)])
def test_a_lock_is_waited_for_while_others_get_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, *, commits: bool, pauses: int, gives_up_after: int | None
) -> None:
    database = connect(sqlite_url).database
    monkeypatch.setattr(database, "_wait", 3)
    monkeypatch.setattr(database, "answer_within", 30)
    assert database.file is not None
    turns = Turns(str(database.file), commits=commits, pauses=pauses)
    users = random.getstate()
    monkeypatch.setattr(sqlite, "time", turns)
    if gives_up_after is None:
        database.in_write(lambda _: None)
        assert turns.now == pauses
    else:
        with pytest.raises(CatalogUnavailableError, match="locked"):
            database.in_write(lambda _: None)
        assert turns.now == gives_up_after
    assert turns.longest <= 0.02  # who has waited for long asks as often as who has just come
    assert random.getstate() == users, "the training's own random numbers are not as undisturbed"


def test_ctrl_c_at_the_begin_of_a_write_ends_it_as_ctrl_c__before_with_an_error_of_sqlite(sqlite_url: str) -> None:
    """SQLAlchemy has closed the connection by then."""
    database = open_database(sqlite_url)
    connect(sqlite_url).runs()

    def press(_cursor: object, statement: str, *_: object) -> None:
        if statement == "BEGIN IMMEDIATE":
            raise KeyboardInterrupt

    with database.read() as connection:
        of_all = connection.engine
    sa.event.listen(of_all, "do_execute", press)
    with pytest.raises(KeyboardInterrupt), database.write():
        pass
    sa.event.remove(of_all, "do_execute", press)
    with database.write() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() != 0, "the next one waits for a lock again"


def test_what_fails_inside_a_transaction_is_rolled_back(database_url: str) -> None:
    catalog = connect(database_url)
    with pytest.raises(ZeroDivisionError), catalog.database.write() as connection:
        connection.exec_driver_sql("INSERT INTO runs (name) VALUES ('x')")
        raise ZeroDivisionError
    assert catalog.runs() == []


def ask_while_it_stands_still(connection: sa.Connection, server: int) -> None:
    os.kill(server, signal.SIGSTOP)
    try:
        connection.execute(sa.text("SELECT 1"))
    finally:
        os.kill(server, signal.SIGCONT)


def test_a_server_that_stops_answering_is_given_up(postgres: str) -> None:
    """Its process is there, and so is the connection; it only never says anything again."""
    url = sa.make_url(new_postgres_database(postgres)).set(drivername="postgresql+psycopg")
    database = Database(url, answer_within=2)
    with pytest.raises(CatalogUnavailableError, match="it did not answer in 2 s"), database.read() as connection:
        server = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        ask_while_it_stands_still(connection, server)
    with database.read() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1


def test_a_transaction_may_last_as_long_as_its_statements_are_answered(postgres: str) -> None:
    url = sa.make_url(new_postgres_database(postgres)).set(drivername="postgresql+psycopg")
    with Database(url, answer_within=2).read() as connection:
        for _ in range(5):
            connection.execute(sa.text("SELECT pg_sleep(0.5)"))


def test_only_what_is_kept_elsewhere_may_be_undone_by_a_power_failure(sqlite_url: str) -> None:
    """SQLite waits for the disk when it commits (2: FULL), unless told that it need not (1: NORMAL)."""
    database = connect(sqlite_url).database

    def level(connection: sa.Connection) -> int | None:
        return connection.exec_driver_sql("PRAGMA synchronous").scalar()

    assert database.in_write(level) == 2
    assert database.in_write(level, is_kept=True) == 1
    with database.write() as connection:
        assert level(connection) == 2
    assert database.in_write(level, is_kept=True) == 1
    assert database.in_write(level) == 2
    other = Database(database.url)
    with other.read() as connection, pytest.raises(sqlite3.OperationalError, match="locked"):
        connection.scalar(sa.text("SELECT count(*) FROM runs"))
        with contextlib.closing(sqlite3.connect(str(database.file), timeout=0)) as third:
            third.execute("PRAGMA journal_mode=DELETE")
    other.disconnect()
    database.disconnect()
    with contextlib.closing(sqlite3.connect(str(database.file))) as third:
        assert third.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    assert database.in_write(level, is_kept=True) == 2  # without such a log the file itself might be broken


def test_a_connection_is_let_go_where_nobody_needs_it(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at many directories may take long, and other threads wait for their turn."""
    database = connect(new_postgres_database(postgres)).database
    with database.connected():
        with database.read() as connection:
            database.let_go()
            assert connection.scalar(sa.select(1)) == 1
        assert database._own.connection is not None
        database.let_go_if_idle()
        assert database._own.connection is not None
        monkeypatch.setattr(engine, "_TRUSTED_SECONDS", -1.0)
        database.let_go_if_idle()
        assert database._own.connection is None
        database._engine.connect().close()  # as another thread does
        with database.read() as connection:
            assert connection.scalar(sa.select(1)) == 1
    assert database._own.connection is None


def test_a_thread_that_waits_too_long_for_another_one_gives_up(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_WAIT_SECONDS", 0.2)
    database = open_database(new_postgres_database(postgres))
    failures: list[CatalogBusyError] = []

    def ask() -> None:
        try:
            with database.read():
                pass
        except CatalogBusyError as error:
            failures.append(error)

    with database.read():
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert [error.message.endswith("(other threads of this process use it)") for error in failures] == [True]
    ask()
    assert len(failures) == 1


@contextlib.contextmanager
def ctrl_c(comes: Callable[[FrameType], bool | None]) -> Iterator[pytest.ExceptionInfo[KeyboardInterrupt]]:
    """Ctrl-C comes in the block, in the first call of which that is true; in a later line of it after None."""

    def look(frame: FrameType, *_: object) -> Callable[..., Any] | None:
        if comes(frame):
            sys.settrace(before)
            raise KeyboardInterrupt
        return look if comes(frame) is None else None

    before = sys.gettrace()
    sys.settrace(look)
    try:
        with pytest.raises(KeyboardInterrupt) as kept:
            yield kept
    finally:
        sys.settrace(before)


_WHERE_CTRL_C_COMES = [
    ("sqlalchemy/engine/default.py", "do_execute"),
    ("sqlalchemy/pool/base.py", "_checkout"),
    ("sqlalchemy/pool/base.py", "_finalize_fairy"),
    ("sqlalchemy/pool/impl.py", "_do_return_conn"),
]


def test_ctrl_c_closes_no_connection_that_another_thread_has_by_now(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupted one waits for the place in the pool that it had before."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    def other() -> None:
        with database.read() as connection:
            used.set()
            assert ended.wait(20)
            found.append(connection.execute(sa.text("SELECT 1")).scalar_one())
            drivers.append(connection.connection.dbapi_connection)

    database = open_database(new_postgres_database(postgres), connections=2)
    used, ended, found, drivers = threading.Event(), threading.Event(), list[int](), list[Any]()
    with database.read() as connection:
        connection.execute(sa.text("SELECT 1"))
    thread = threading.Thread(target=other)
    thread.start()
    assert used.wait(20)
    monkeypatch.setattr(Database, "_connect", interrupted)
    with pytest.raises(KeyboardInterrupt), database.read():
        pass
    ended.set()
    thread.join()
    assert found == [1]
    drivers[0].close()


@pytest.mark.parametrize(("file", "function"), _WHERE_CTRL_C_COMES)
def test_ctrl_c_leaves_no_lock_and_no_used_up_pool__before_every_later_call_failed(
    catalog: Catalog, database_url: str, file: str, function: str
) -> None:
    """A notebook keeps the traceback of an interrupted call, and goes on with the same catalog."""

    def write(database: Database) -> None:
        with database.write() as connection:
            connection.execute(sa.text("UPDATE runs SET name = name"))

    database = catalog.database
    database._wait = 0.2
    write(database)  # the first one compiles the statement
    with ctrl_c(lambda frame: frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file)) as kept:
        write(database)
    write(open_database(database_url))
    write(database)
    write(database)
    assert kept.tb is not None


def test_ctrl_c_at_the_end_of_a_shared_connection_leaves_its_place__before_every_later_call_failed(
    postgres: str,
) -> None:
    """A start closes it there, outside of any transaction."""

    def read() -> None:
        with database.connected(), database.read() as connection:
            connection.execute(sa.text("SELECT 1"))

    database = open_database(new_postgres_database(postgres))
    database._wait = 0.2
    read()
    with ctrl_c(lambda frame: frame.f_code.co_name == "_do_return_conn") as kept:
        read()
    read()
    assert kept.tb is not None


def test_ctrl_c_while_a_server_answers_many_rows_is_not_taken_for_a_server_that_is_away(postgres: str) -> None:
    """Seen before: the end of the pipeline failed, and its error took the place of this one: exit code 4."""

    def rows_were_sent(frame: FrameType) -> bool | None:
        if frame.f_code.co_name != "bounded" or frame.f_locals["answer"].__name__ != "_exit_gen":
            return False
        return True if "wanted" in frame.f_locals else None

    def write() -> None:
        with database.write() as connection:
            connection.execute(sa.text("INSERT INTO rows VALUES (:id)"), [{"id": each} for each in range(3)])

    database = open_database(new_postgres_database(postgres))
    with database.write() as connection:
        connection.execute(sa.text("CREATE TABLE rows (id integer)"))
    with ctrl_c(rows_were_sent):
        write()
    write()
    with database.read() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM rows")) == 3
