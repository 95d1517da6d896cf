"""Commands that messages print do what the message says, in the situation that printed it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psycopg
import pytest

from ckptstore.api import connect
from ckptstore.catalog.tables import collections
from ckptstore.doctor.doctor import examine
from ckptstore.errors import CkptstoreError, NothingRestorableError
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.cli.advice import commands_in, follow, run
from tests.command_line import assert_one_line, ckptstore
from tests.conftest import new_postgres_database
from tests.jobs import Job, begun, started

pytestmark = pytest.mark.of_files

RUN = "my run"


@pytest.fixture
def job(sqlite_url: str, tmp_path: Path) -> Job:
    """Steps 5 to 25 of a run whose name has to be quoted."""
    job, _ = started(connect(sqlite_url), tmp_path / "data", 5, 10, 15, 20, 25, run=RUN)
    job.catalog.database.disconnect()
    return job


def newest(url: str) -> int:
    return int(run(url, "resolve", RUN, "--json").json["global_step"])


@contextmanager
def said(*kinds: type[CkptstoreError]) -> Iterator[Callable[[], str]]:
    """What is raised inside, to be asked for after."""
    with pytest.raises(kinds or CkptstoreError) as raised:
        yield lambda: str(raised.value)


def hints(url: str, name: str) -> str:
    """What doctor says is to be done about one of its checks."""
    return next(check.hint for check in examine(url, RUN).checks if check.name == name)


def test_what_is_said_where_a_run_is_forgotten(sqlite_url: str, job: Job) -> None:
    job.catalog.execute(job.catalog.plan_gc(RUN, Policy(keep_last=2)))
    shown = run(sqlite_url, "forget", RUN).out
    assert follow(sqlite_url, shown).out.startswith(f"run {RUN}: 6 files")
    done = run(sqlite_url, "forget", RUN, "--apply").out
    assert follow(sqlite_url, done).code == 0
    for ask in (job.start, lambda: job.catalog.scan(job.directory, run=RUN)):
        job.catalog.forget(RUN)
        with said(CkptstoreError) as refused:
            ask()
        assert follow(sqlite_url, refused()).code == 0
    assert newest(sqlite_url) == 25


def test_a_file_that_no_catalog_knows(sqlite_url: str, tmp_path: Path) -> None:
    job, _ = begun(connect(sqlite_url), tmp_path / "data", 10, run=RUN)
    strange = ckpt_bytes.write(job.folder(0) / "other-1_1.ckpt", 1)
    os.utime(strange, (1_700_000_000, 1_700_000_000))
    told = run(sqlite_url, "verify", RUN).out
    assert follow(sqlite_url, told[told.index(str(strange)) :], DIRECTORY=str(job.folder(0))).code == 0


def test_starts_that_are_refused(sqlite_url: str, tmp_path: Path) -> None:
    """Each names what tells why."""
    catalog = connect(sqlite_url)
    lost = Job(catalog, tmp_path / "lost", run="lost")
    for file in lost.save(lost.start(), 10):
        Path(file.path).unlink()
    given_up, _ = started(catalog, tmp_path / "given up", 10, run="given up")
    given_up.save(given_up.start(resume=False)[:1], 5)
    never = Job(catalog, tmp_path / "never", run="never")
    never.save(never.start()[:1], 5, 10, 15)
    for job in (lost, given_up, never):
        with said(NothingRestorableError) as refused:
            job.start()
        assert "step" in follow(sqlite_url, refused()).out
    with said(NothingRestorableError) as refused:
        given_up.start(resume=False)[0].resolve(step=7)
    assert follow(sqlite_url, refused()).code == 3


def test_a_start_that_passes_over_a_state(sqlite_url: str, job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """The warning, and doctor afterwards, name where to read of it."""
    (job.folder(0) / "net-3_5.ckpt").unlink()
    caplog.clear()
    assert job.start()[0].facts.parent_step == 20
    (warned,) = caplog.messages
    for message in (warned, hints(sqlite_url, "passed_over")):
        assert "25" in follow(sqlite_url, message).out


def test_what_doctor_says_of_journals_and_trash(sqlite_url: str, tmp_path: Path) -> None:
    job, ranks = begun(connect(sqlite_url), tmp_path / "data", 5, 10, 15, run=RUN)
    behind = str(tmp_path / "behind.db")
    connect(behind).scan(job.directory)
    job.save(ranks, 20)
    assert follow(behind, hints(behind, "journals")).code == 0
    assert hints(behind, "journals") == ""
    job.catalog.execute(job.catalog.plan_gc(RUN, Policy(keep_last=2)))
    with job.catalog.database.write() as connection:
        connection.execute(collections.update().values(purge_after=datetime.now(timezone.utc) - timedelta(days=1)))
    assert follow(sqlite_url, hints(sqlite_url, "trash")).out.startswith(f"run {RUN}: 4 files")


def test_a_damaged_catalog_is_made_anew(job: Job, sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    damaged = ckptstore("--db", sqlite_url, "runs")
    assert_one_line(damaged, 4, "then rebuild the catalog from the journals: ckptstore scan DIR")
    assert commands_in(damaged.err) == [["scan", "DIR"]]
    looked = run(sqlite_url, "doctor")
    assert looked.code == 6
    path.rename(path.with_name("damaged"))
    for told in (damaged.err, looked.out):
        assert follow(sqlite_url, told, DIR=str(job.directory)).code == 0
    assert newest(sqlite_url) == 25


def test_a_lost_catalog_is_made_anew(job: Job, tmp_path: Path) -> None:
    anew = str(tmp_path / "anew.db")
    for command in (["resolve", RUN], ["gc", RUN, "--keep-last", "2"], ["doctor", RUN], ["doctor"]):
        url = f"{anew}-{len(command)}-{command[0]}"
        assert run(url, "runs").out == "no runs yet\n", "as an operator may have asked first"
        told = run(url, *command)
        assert follow(url, told.err or told.out, DIR=str(job.directory), DIRECTORY=str(job.directory)).code == 0, told
        assert newest(url) == 25


def test_no_file_of_a_run_is_left(job: Job, sqlite_url: str) -> None:
    begun(job.catalog, job.directory.parent / "other", run="other")
    assert run(sqlite_url, "list", "other").out == f"no saves of run other yet in {sqlite_url}\n"
    for path in job.directory.rglob("*.ckpt"):
        path.unlink()
    assert run(sqlite_url, "verify", RUN).code == 6
    for asked in ([], [RUN]):
        told = run(sqlite_url, "list", *asked)
        assert told.out.startswith("no save has a file in its place; ")
        assert follow(sqlite_url, told.out).out.count("missing") == 10


def test_the_way_back_to_an_abandoned_branch(job: Job, sqlite_url: str) -> None:
    assert run(sqlite_url, "resolve", RUN, "--step", "10", "--branch").code == 0
    explained = run(sqlite_url, "resolve", RUN, "--explain")
    assert newest(sqlite_url) == 10
    (way,) = [line for line in explained.out.splitlines() if "@25" in line]
    assert follow(sqlite_url, way).code == 0
    assert newest(sqlite_url) == 25


def test_a_catalog_that_is_not_there_or_empty(tmp_path: Path, postgres: str) -> None:
    missing = str(tmp_path / "missing.db")
    assert follow(missing, run(missing, "db", "check").err).code == 0
    assert run(missing, "db", "check").code == 0
    empty = new_postgres_database(postgres)
    assert follow(empty, run(empty, "db", "check").err).code == 0
    assert run(empty, "db", "check").code == 0
    other = empty.replace("/test_", "/not_there_")
    refused = run(other, "runs")
    with psycopg.connect(host=postgres, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {other.partition('@/')[2].partition('?')[0]}")
    assert follow(other, refused.err).code == 0
    assert run(other, "db", "check").code == 0
