"""`history` says a week later from where each launch started, and why not from a newer state."""

import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog import leases
from ckptstore.disk.owner import this_process
from ckptstore.doctor.checkup import Status
from tests.command_line import ckptstore
from tests.doctor.checkups import checks
from tests.jobs import Job, begun, set_ending


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    """A launch that ended by an exception, and a second one, which passed over a step that was cut since."""
    made, first = begun(catalog, tmp_path / "data")
    files = made.save(first, 10, 20)
    for launch in first:
        set_ending(launch, 25, 25, "RuntimeError")
    os.truncate(files[1].path, 7)
    second = made.begin()
    assert second[0].facts.parent_step == 10
    made.save(second, 12)
    with catalog.database.write() as connection:
        leases.give_sign(connection, second[0].key, this_process(), datetime.now(timezone.utc))
    return made


def test_every_launch_is_told(job: Job, database_url: str) -> None:
    first, second = ckptstore("--db", database_url, "history", "run", "--json").json
    assert (first["launch"], first["world_size"], first["from_launch"], first["last_step"]) == ("L1", 2, None, 25)
    assert (first["ending"], first["passed_over"], len(first["hosts"])) == ("ended: RuntimeError", [], 1)
    assert first["seconds"] >= 0
    assert (second["from_launch"], second["from_step"], second["start_step"]) == ("L1", 10, 10)
    assert (second["last_step"], second["ending"], second["went_back"]) == (12, "training", False)
    (passed,) = second["passed_over"]
    assert (passed["launch"], passed["global_step"], passed["rule"]) == ("L1", 20, "size_mismatch")
    assert "has 7 bytes" in passed["detail"]
    shown = ckptstore("--db", database_url, "history", "run").out.splitlines()
    assert [row.split()[0] for row in shown[1:3]] == ["L1", "L2"]
    assert "ended: RuntimeError" in shown[1]
    assert "step 10" in shown[2]
    assert shown[3].startswith("L2 passed over step 20 of launch L1: size_mismatch: ")


def test_doctor_says_it_while_it_is_new(job: Job, database_url: str) -> None:
    found = checks(database_url)["passed_over"]
    assert found.status is Status.WARNING
    assert "passed over step 20 of launch L1: size_mismatch" in found.detail
    assert found.hint == "ckptstore history run has every launch"
    job.begin()
    assert "passed_over" not in checks(database_url)


def test_what_was_given_up_on_purpose_is_not_passed_over(job: Job, catalog: Catalog) -> None:
    back = job.start(resume=False)
    back[0].resolve(step=10, lineage="L1")
    job.save(back, 11)
    job.begin()
    told = catalog.history("run")
    assert [(row.launch.parent_step, row.launch.branched, row.passed) for row in told[2:]] == [
        (10, True, ()),
        (11, False, ()),
    ]
