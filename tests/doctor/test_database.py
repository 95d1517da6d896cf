"""What doctor finds of databases: real ones, in each state that they can be in; and none is changed by looking."""

import shlex
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic

import psycopg
import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import mounts, schema
from ckptstore.catalog.engine import open_to_look
from ckptstore.disk import run_directories
from ckptstore.doctor import check_database
from ckptstore.doctor import doctor as ops
from ckptstore.doctor.checkup import Status
from ckptstore.doctor.doctor import examine
from ckptstore.doctor.run_facts import Room
from tests.cli.advice import follow
from tests.command_line import ckptstore
from tests.conftest import new_postgres_database
from tests.doctor.checkups import checks, said, unchanged
from tests.jobs import Job, begun
from tests.small_disks import small_disk

DIE_WITH_A_LOG = """
import os, sys
from ckptstore.api import connect
launch = connect(sys.argv[1]).join("run")
launch.register(sys.argv[2], global_step=7)
os._exit(0)
"""


@pytest.fixture
def run(catalog: Catalog, tmp_path: Path) -> Job:
    """A run of two ranks, and nobody who has the catalog open."""
    job, _ = begun(catalog, tmp_path / "data", 10, 20, layout="data_parallel")
    catalog.database.disconnect()
    return job


def test_it_changes_nothing(run: Job, database_url: str, tmp_path: Path) -> None:
    with unchanged(tmp_path, database_url):
        assert examine(database_url).exit_code == 0
        assert examine(database_url, "run").exit_code == 0


def test_it_changes_nothing_while_others_have_it_open(tmp_path: Path, sqlite_url: str) -> None:
    catalog = connect(sqlite_url)
    with catalog.database.read():
        with unchanged(tmp_path / "data"):
            assert checks(sqlite_url, None)["database"].status is Status.OK
        assert {path.name for path in tmp_path.glob("catalog.db*")} >= {"catalog.db", "catalog.db-wal"}


def test_a_log_that_a_killed_process_left_stays_what_it_is(tmp_path: Path) -> None:
    url, file = str(tmp_path / "catalog.db"), tmp_path / "net-1_7.ckpt"
    connect(url).database.disconnect()
    file.write_bytes(b"1")
    subprocess.run([sys.executable, "-c", DIE_WITH_A_LOG, url, file], check=True)
    log = Path(f"{url}-wal")
    assert log.stat().st_size > 0
    before = (log.read_bytes(), Path(url).read_bytes())
    assert checks(url)["restorable"].detail.startswith("step 7")  # which is in the log only
    assert (log.read_bytes(), Path(url).read_bytes()) == before


def test_what_is_said_of_sqlite(tmp_path: Path, sqlite_url: str) -> None:
    connect(sqlite_url)
    found = checks(sqlite_url, None)
    assert found["database"].detail.startswith(f"sqlite:///{tmp_path}/catalog.db: ")
    assert "ms, answered in " in found["database"].detail
    assert ", undamaged; " in found["database"].detail
    assert found["catalog_disk"].detail.endswith("with a write-ahead log")
    assert said(found["schema"]) == ("ok", f"{schema.REVISION}, which this program works with")


def test_what_is_said_of_postgresql(postgres: str) -> None:
    url = new_postgres_database(postgres)
    connect(url)
    found = checks(url, None)
    assert [name for name, check in found.items() if check.status is not Status.OK] == ["runs"]  # it has none
    assert ": PostgreSQL 1" in found["database"].detail
    assert found["connections"].detail.endswith("that the server has for users")
    assert found["server_clock"].detail.startswith("the server's is 0 s ")


def test_a_password_is_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = examine(f"postgresql://me:s3cret@127.0.0.1:{port}/ckptstore")
    assert done.exit_code == 4
    assert "s3cret" not in repr(done)
    assert "refused" in repr(done)


# A catalog that cannot be used


@pytest.mark.parametrize("folder", [".", "no/such"])
def test_no_catalog_is_made(tmp_path: Path, folder: str) -> None:
    url = str(tmp_path / folder / "catalog.db")
    with unchanged(tmp_path):
        done = examine(url)
    assert done.exit_code == 4
    assert [check.name for check in done.checks] == ["program", "database", "runs"]
    assert "there is no catalog" in done.checks[1].detail


def test_an_empty_database(postgres: str, tmp_path: Path) -> None:
    """Its schema is made by whoever uses it first: that is no trouble, and nothing to upgrade."""
    (tmp_path / "empty.db").touch()
    for url in (str(tmp_path / "empty.db"), new_postgres_database(postgres)):
        with unchanged(tmp_path):
            done = examine(url)
        assert done.exit_code == 4
        (found,) = [check for check in done.checks if "is empty: the first command creates it" in check.detail]
        assert ckptstore(*shlex.split(found.hint)[2:]).code == 0
        assert examine(url).exit_code == 0


@pytest.mark.parametrize(("version", "hint"), [("0000", "db upgrade"), ("9999", "update ckptstore here")])
def test_another_schema(run: Job, database_url: str, tmp_path: Path, version: str, hint: str) -> None:
    with run.catalog.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE ckptstore_version SET version_num = '{version}'")
    run.catalog.database.disconnect()
    with unchanged(tmp_path):
        done = examine(database_url)
    assert done.exit_code == 4
    (schema,) = [check for check in done.checks if check.name == "schema"]
    assert schema.status is Status.PROBLEM
    assert hint in schema.hint


def test_the_rest_of_the_page_without_the_catalog(
    run: Job, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By journals in the directories that are known without it."""
    monkeypatch.setenv("CKPTSTORE_DIRECTORIES", str(run.directory))
    with unchanged(run.directory):
        found = checks("postgresql:///none?host=/no/such/socket")
    assert found["database"].status is Status.PROBLEM
    assert found["restorable"].detail.startswith("step 20")
    assert found["ranks"].status is found["disk"].status is Status.OK
    assert said(found["journals"]) == ("note", "2 journals, from which this report was made")
    assert follow(database_url, found["journals"].hint).code == 0
    assert "no journal here tells of run 'other'" in checks(str(tmp_path / "none.db"), "other")["runs"].detail


def test_without_the_catalog_this_machine_may_remember(run: Job, tmp_path: Path) -> None:
    url = "postgresql://me@/none?host=/no/such/socket"
    assert checks(url)["runs"].status is Status.NOTE
    run_directories.remember(open_to_look(url, answer_within=1).name, ["run"], str(run.folder(0)))
    assert checks(url)["restorable"].detail.startswith("step 20")


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_ANSWER_SECONDS", 2.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        begin = monotonic()
        done = examine(f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/x")
    assert done.exit_code == 4
    assert monotonic() - begin < 60  # it would be for ever


def test_a_catalog_that_goes_away_meanwhile(run: Job, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = check_database.checks

    def look_and_lose(database: object) -> object:
        found = real(database)
        with run.catalog.database.write() as connection:
            connection.exec_driver_sql("DROP TABLE gc_locks")
        return found

    monkeypatch.setattr(check_database, "checks", look_and_lose)
    done = examine(database_url)
    assert done.exit_code == 4
    assert [check.name for check in done.checks if check.status is Status.PROBLEM] == ["database"]


# A catalog with something wrong


def test_a_damaged_file(tmp_path: Path) -> None:
    url = tmp_path / "catalog.db"
    catalog = connect(str(url))
    Job(catalog, tmp_path / "data", 64).start()
    catalog.database.disconnect()
    with closing(sqlite3.connect(url)) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name LIKE 'ix_checkpoints_path%'"
        ).fetchone()
        (length,) = connection.execute("PRAGMA page_size").fetchone()
    with url.open("r+b") as file:
        file.seek((page - 1) * length)
        file.write(b"\xff" * length)
    with unchanged(tmp_path):
        done = examine(str(url))
    assert done.exit_code == 6
    (database,) = [check for check in done.checks if check.name == "database"]
    assert "; damaged: " in database.detail


def test_a_file_of_which_nothing_can_be_read(sqlite_url: str, tmp_path: Path) -> None:
    catalog = connect(sqlite_url)
    Job(catalog, tmp_path / "data").start()
    catalog.database.disconnect()
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    for run in (None, "run"):
        done = examine(sqlite_url, run)
        assert done.exit_code == 6
        (database,) = [check for check in done.checks if check.status is Status.PROBLEM]
        assert "is damaged" in database.detail
        assert "doctor" not in database.hint
        assert "rebuild it: ckptstore scan DIR" in database.hint
        assert done.checks[-1].detail == "nothing is known of runs without the catalog"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of a megabyte."""
    with small_disk(tmp_path / "disk", "size=1m") as home:
        yield home


def test_a_disk_that_is_read_only(disk: Path) -> None:
    url = str(disk / "catalog.db")
    connect(url).database.disconnect()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    found = examine(url)
    assert found.exit_code in (1, 4)
    (database,) = [check for check in found.checks if check.name == "database"]
    assert database.status is Status.PROBLEM
    assert "written to" in f"{database.detail} {database.hint}"


@pytest.mark.parametrize(
    ("name", "stand_in", "status", "words"),
    [
        ("room_of", lambda _: Room(10**9, None), Status.OK, "undamaged"),
        ("room_of", lambda _: Room(10**7, None), Status.WARNING, ""),
        ("room_of", lambda _: Room(10**5, None), Status.PROBLEM, ""),
        (
            "may_write",
            lambda path: not path.is_dir(),
            Status.PROBLEM,
            " cannot be written to",
        ),  # root may write anything
    ],
)
def test_little_room_and_no_permission(  # noqa: PLR0917
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, name: str, stand_in: object, status: Status, words: str
) -> None:
    connect(sqlite_url)
    monkeypatch.setattr(check_database, name, stand_in)
    found = checks(sqlite_url, None)["database"]
    assert (found.status, words in found.detail) == (status, True)
    assert examine(sqlite_url).exit_code == (status is Status.PROBLEM)


def test_a_network_file_system(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(sqlite_url).database.disconnect()
    monkeypatch.setattr(mounts, "_table", lambda: f"9 1 0:9 / {tmp_path} rw - nfs4 server:/x rw")
    found = checks(sqlite_url, None)["catalog_disk"]
    assert said(found) == ("problem", "nfs4, where its write-ahead log does not work")
    connect(sqlite_url).database.disconnect()  # as any other command: without the log from now on
    found = checks(sqlite_url, None)["catalog_disk"]
    assert found.status is Status.WARNING
    assert "network file system (nfs4)" in found.detail
    monkeypatch.setattr(mounts, "_table", lambda: f"9 1 0:9 / {tmp_path} rw - ext4 x rw")
    assert checks(sqlite_url, None)["catalog_disk"].status is Status.NOTE, "a local one could have a log"


def test_a_server_that_takes_no_writes(postgres: str) -> None:
    url = new_postgres_database(postgres)
    catalog = connect(url)
    name = catalog.database.url.database
    with psycopg.connect(host=postgres, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    found = checks(url, None)["database"]
    assert found.status is Status.PROBLEM
    assert "read-only" in found.detail


def test_a_server_that_is_nearly_full(postgres: str) -> None:
    url = new_postgres_database(postgres)
    connect(url)
    held = []
    try:
        with pytest.raises(psycopg.OperationalError):
            while True:
                held.append(psycopg.connect(host=postgres, user="postgres", dbname="postgres"))
        for connection in held[-5:]:
            connection.close()
        found = checks(url, None)["connections"]
        assert found.status is Status.WARNING
        assert "PgBouncer" in found.hint
    finally:
        for connection in held:
            connection.close()
