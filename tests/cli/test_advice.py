"""Commands that messages print do what the message says, in the situation that printed it."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from ckptstore.api import connect
from ckptstore.retention.policy import Policy
from tests.command_line import Result, ckptstore
from tests.jobs import Job

pytestmark = pytest.mark.of_files

RUN = "my run"


@pytest.fixture
def job(sqlite_url: str, tmp_path: Path) -> Job:
    """Steps 5 to 25 of a run whose name has to be quoted."""
    job = Job(connect(sqlite_url), tmp_path / "data", run=RUN)
    job.save(job.start(), 5, 10, 15, 20, 25)
    job.catalog.database.disconnect()
    return job


def do(url: str, *arguments: str) -> Result:
    return ckptstore("--db", url, *arguments)


def advice(said: Result, command: str) -> list[str]:
    """The arguments of a command that was printed."""
    found = re.search(rf"ckptstore ({command} (?:'[^']*'|\S)+(?: --[\w-]+(?: \d+)?)*)", said.out + said.err)
    assert found, said
    return shlex.split(found[1])


def newest(url: str) -> int:
    return int(do(url, "resolve", RUN, "--json").json["global_step"])


def test_verify_takes_note_of_what_was_brought_back(sqlite_url: str, job: Job) -> None:
    path = max(job.folder(0).glob("*.ckpt"), key=lambda each: each.stat().st_mtime_ns)
    kept = shutil.copy2(path, path.with_name("kept"))
    path.write_bytes(path.read_bytes()[:-1])
    assert do(sqlite_url, "verify", RUN).code == 6
    told = do(sqlite_url, "resolve", RUN, "--explain")
    assert newest(sqlite_url) == 20
    shutil.move(kept, path)
    done = do(sqlite_url, *advice(told, "verify"))
    assert done.code == 0, done
    assert newest(sqlite_url) == 25


def test_undo_brings_back_what_gc_removed(sqlite_url: str, job: Job) -> None:
    job.catalog.execute(job.catalog.plan_gc(RUN, Policy(keep_last=2)))
    job.catalog.database.disconnect()
    told = do(sqlite_url, "resolve", RUN, "--step", "10", "--explain")
    assert told.code == 3
    assert do(sqlite_url, *advice(told, "undo")).code == 0
    assert do(sqlite_url, "resolve", RUN, "--step", "10").code == 0


def test_a_policy_is_stored_as_the_message_says(sqlite_url: str, job: Job) -> None:
    assert job.run == RUN
    refused = do(sqlite_url, "gc", RUN)
    assert refused.code == 5
    assert do(sqlite_url, *advice(refused, "policy")).code == 0
    assert do(sqlite_url, "gc", RUN).code == 0


def test_doctor_where_files_were_deleted(sqlite_url: str, job: Job) -> None:
    shutil.move(job.directory / "rank_1", job.directory / "away")
    told = do(sqlite_url, "doctor", RUN)
    found = do(sqlite_url, *advice(told, "resolve"), "--explain")
    assert (found.code, "Traceback" in found.err) == (3, False)
    shutil.move(job.directory / "away", job.directory / "rank_1")
    assert newest(sqlite_url) == 25
