"""Files under the names of others, which are gone or in the trash: what a scan takes in, and what it says."""

import os
import time
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog.tables import checkpoints
from ckptstore.core.model import SCANNED, FileState, Kind
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.cli.advice import follow
from tests.jobs import Job, begun, started

STEPS = (5, 10, 15, 20)


def name(step: int) -> str:
    return f"net-{(step - 1) // 10 + 1}_{(step - 1) % 10 + 1}.ckpt"


def write_anew(job: Job, *steps: int) -> list[str]:
    """Another training without a registrar writes files of the same names and sizes."""
    return [str(ckpt_bytes.write(job.folder(0) / name(step), step, weight=2000.0)) for step in steps]


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    """A launch of one rank, four states of which were registered an hour ago."""
    job, (launch,) = started(catalog, tmp_path / "ckpt", world_size=1)
    hour_ago = time.time_ns() - 3600 * 10**9
    for step in STEPS:
        path = job.write(launch, step)
        os.utime(path, ns=(hour_ago, hour_ago + step * 10**9))
        launch.register(path, global_step=step, optimizer_step=step)
    return job


def empty(job: Job) -> None:
    for path in job.folder(0).glob("*.ckpt"):
        path.unlink()
    assert len(job.catalog.scan(job.directory, run="run").missing) == 4


def test_a_run_goes_on_in_a_directory_that_was_emptied(job: Job) -> None:
    empty(job)
    paths = write_anew(job, *STEPS)
    for dry_run in (True, False):
        done = job.catalog.scan(job.directory, run="run", world_size=1, dry_run=dry_run)
        assert (done.known, done.skipped) == (0, ())
        assert sorted(file.path for file in done.adopted) == sorted(paths)
    again = job.catalog.scan(job.directory, run="run", world_size=1)
    assert (again.known, again.adopted, again.missing, again.damaged) == (4, (), (), ())
    plan = job.catalog.resolve("run").plan
    assert (plan.global_step, plan.launch.id.startswith(SCANNED)) == (20, True)


def test_a_run_of_another_name_takes_a_directory_that_was_emptied(job: Job) -> None:
    empty(job)
    paths = write_anew(job, *STEPS)
    done = job.catalog.scan(job.directory, run="other", world_size=1)
    assert sorted(file.path for file in done.adopted) == sorted(paths)
    assert job.catalog.resolve("other").plan.global_step == 20
    assert {file.state for file in job.catalog.files("run")} == {FileState.MISSING}
    told = job.catalog.scan(job.directory, run="run", world_size=1)
    assert (told.adopted, told.known) == ((), 4)
    assert {(each.path, each.reason) for each in told.skipped} == {(path, "it is of run 'other'") for path in paths}


@pytest.mark.parametrize("has_digest", [True, False])
def test_a_file_that_was_copied_back_without_its_time_is_no_new_launch(job: Job, *, has_digest: bool) -> None:
    """It would be one that went back, and what came after it would be given up."""
    (file,) = job.catalog.show("run", 10)
    path = Path(file.path)
    bytes_of_it = path.read_bytes()
    path.unlink()
    job.catalog.scan(job.directory, run="run")
    if not has_digest:
        job.catalog.database.in_write(lambda connection: connection.execute(checkpoints.update().values(digest=None)))
    path.write_bytes(bytes_of_it)
    if not has_digest:  # nothing proves that it is the file
        for dry_run in (True, False):
            done = job.catalog.scan(job.directory, run="run", dry_run=dry_run)
            assert (done.adopted, done.known) == ((), 3)
            ((told, reason),) = [(each.path, each.reason) for each in done.skipped]
            assert told == str(path)
            assert "Copy it again with its time (cp -p)" in reason
        assert file.mtime_ns is not None
        os.utime(path, ns=(file.mtime_ns, file.mtime_ns))
    for dry_run in (True, False):
        done = job.catalog.scan(job.directory, run="run", dry_run=dry_run)
        assert (done.adopted, done.skipped, done.known) == ((), (), 4)
    assert {each.state for each in job.catalog.files("run")} == {FileState.COMPLETE}
    assert job.catalog.resolve("run").plan.global_step == 20


@pytest.mark.parametrize("run", ["run", "other"])
def test_what_gc_moved_to_the_trash_has_its_path_until_it_is_purged(job: Job, database_url: str, run: str) -> None:
    job.catalog.execute(job.catalog.plan_gc("run", Policy(keep_last=2)))
    paths = write_anew(job, 5, 10)
    done = job.catalog.scan(job.directory, run=run, world_size=1)
    assert done.adopted == ()
    reasons = {each.path: each.reason for each in done.skipped if each.path in paths}
    assert reasons.keys() == set(paths)
    assert all("to the trash" in each for each in reasons.values())
    assert follow(database_url, reasons[paths[0]]).out.startswith("run run: 2 files")
    done = job.catalog.scan(job.directory, run=run, world_size=1)
    assert {each.path for each in done.skipped} & set(paths) == set()
    assert {*(each.path for each in done.adopted), *(each.path for each in done.uncertain)} == set(paths)


def test_what_a_rank_saves_is_left_to_it_and_told(job: Job) -> None:
    empty(job)
    (launch,) = job.start(resume=False)
    launch.add_source(str(job.folder(0)), kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
    (path,) = write_anew(job, 5)
    done = job.catalog.scan(job.directory, run="run", world_size=1)
    assert (done.adopted, done.known) == ((), 0)
    assert [each.path for each in done.skipped] == [path]
    launch.register(job.write(launch, 25), global_step=25, optimizer_step=25)
    job.catalog.scan(job.directory, run="run", world_size=1)
    states = {(file.launch, file.state) for file in job.catalog.files("run") if file.path == path}
    assert states == {("L1", FileState.MISSING), ("L2", FileState.COMPLETE)}


@pytest.mark.of_files
@pytest.mark.parametrize("is_moved", [False, True])
def test_a_scan_of_a_directory_says_that_the_files_of_the_one_before_are_gone(
    catalog: Catalog, tmp_path: Path, *, is_moved: bool
) -> None:
    """The directory was deleted or moved, and the next launch saved files of the same names in a new one."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    home = job.folder(0)
    home.rename(tmp_path / "old")
    if is_moved:
        catalog.scan(tmp_path / "old", run="run")
    (again,) = job.begin(resume=False)
    for step in (5, 10, 15):
        again.register(job.write(again, step, name=name(step)), global_step=step, optimizer_step=step)
    assert catalog.plan_gc("run", Policy(keep_last=1, floor=1)).bytes_freed == 0
    above = catalog.scan(tmp_path / "ckpt", run="run")
    assert (above.missing, above.damaged) == ((), ())
    scanned = catalog.scan(home, run="run")
    assert sorted((file.launch, file.global_step) for file in scanned.missing) == [("L1", 5), ("L1", 10)]
    assert [file.global_step for file in scanned.damaged] == []
    saves = {(save.launch.id, save.global_step): save.bytes for save in catalog.saves("run")}
    assert (("L1", 5) in saves) is is_moved
    size = saves["L2", 15]
    assert catalog.plan_gc("run", Policy(keep_last=1, floor=1)).bytes_freed == size * (3 if is_moved else 2)
