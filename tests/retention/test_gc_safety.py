"""What gc does not do: take what a launch starts from, follow links, work twice at once, act on a stale plan."""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import leases, reads, removals
from ckptstore.core.limits import CLOCKS_DIFFER, LEASE
from ckptstore.core.model import FileState, launch_key
from ckptstore.disk.owner import this_process
from ckptstore.errors import RefusedError, UsageError
from ckptstore.resume import start
from ckptstore.retention import execute as execute_module
from ckptstore.retention.decide import Why
from ckptstore.retention.execute import execute
from ckptstore.retention.in_trash import purge, undo
from ckptstore.retention.plan import GcPlan, plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.retention.worker import GcLock
from tests.jobs import Job, started
from tests.projecting import put_files, put_start
from tests.retention.builders import LAST_2, gc, names, removed, saved, tree
from tests.retention.gc_world import NOBODY, do_apart, give_to_nobody
from tests.small_disks import date_far_ahead, small_disk


def start_from(catalog: Catalog, job: Job, step: int, *, lasting: timedelta = LEASE) -> None:
    """A launch that starts from an older state on purpose, and has saved nothing yet."""
    ranks = job.start(resume=False)
    chosen = catalog.show("run", step)
    with catalog.database.write() as connection:
        assert start.hold(connection, 1, ranks[0].key, chosen, datetime.now(timezone.utc))
        leases.hold(connection, ranks[0].key, datetime.now(timezone.utc) + lasting)
    with catalog.database.read() as connection:
        origin = reads.launch(connection, launch_key("run", "L1"))
    assert origin is not None
    put_start(catalog, ranks[0].facts, origin, step, chosen)


def test_what_a_launch_starts_from_stays_until_it_has_made_a_newer_one(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    start_from(catalog, job, 10)
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == [("L1", 20)]
    (kept,) = (verdict for verdict in plan.decision.keep if verdict.state.global_step == 10)
    why = "launch L2 started from it, and no restorable state of that launch stays"
    assert [(because.rule, because.detail) for because in kept.reasons] == [(Why.RESTORING, why)]
    ranks = [catalog.join("run", rank=rank, world_size=2, launch_id="L2") for rank in (0, 1)]
    job.save(ranks[:1], 15)
    assert ("L1", 10) not in removed(plan_gc(catalog.database, "run", LAST_2)), "half a state is none"
    job.save(ranks[1:], 15)
    job.save(ranks, 25)
    assert ("L1", 10) in removed(plan_gc(catalog.database, "run", LAST_2))


def test_a_file_of_a_time_that_no_catalog_holds(catalog: Catalog, tmp_path: Path) -> None:
    """gc of all runs ended with a traceback at it; its companion's time is asked too."""
    saved(catalog, tmp_path, 10, 20, 30, 40)
    plain, beside = (Path(catalog.show("run", step)[0].path) for step in (10, 20))
    companion = beside.with_suffix(".companion")
    companion.write_bytes(b"x")
    for path in (plain, companion):
        date_far_ahead(path)
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == []
    told = {path: f"{path}: its modification time is beyond the year 2262: touch it" for path in (plain, companion)}
    doubts = {verdict.state.global_step: verdict.state.doubt for verdict in plan.decision.keep}
    assert (doubts[10], doubts[20]) == (told[plain], told[companion])
    plain.touch()
    companion.touch()
    assert len(gc(catalog, LAST_2).removed) == 2


@pytest.mark.parametrize("at_once", [True, False])
def test_a_floor_that_goes_while_gc_removes(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    """Nothing could be restored any more: the floor was looked at once, before the first of all files."""
    monkeypatch.setattr(execute_module, "PORTION", 2)
    saved(catalog, tmp_path, *range(10, 100, 10))
    plan = plan_gc(catalog.database, "run", LAST_2)
    newest = [Path(file.path) for step in (80, 90) for file in catalog.show("run", step)]

    def lose_the_newest(_: int) -> None:
        for path in newest:
            path.unlink(missing_ok=True)

    with pytest.raises(RefusedError, match="a state that must stay is not as it was"):
        execute(catalog.database, plan, at_once=at_once, progress=lose_the_newest)
    found = catalog.resolve("run").plan
    assert found.global_step == 70


def test_a_lease_ends(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    start_from(catalog, job, 10, lasting=-2 * CLOCKS_DIFFER)
    assert removed(plan_gc(catalog.database, "run", LAST_2)) == [("L1", 20), ("L1", 10)]
    start.keep_holding(catalog.database, launch_key("run", "L2"))
    assert removed(plan_gc(catalog.database, "run", LAST_2)) == [("L1", 20)]


def test_a_launch_whose_states_go_as_fast_as_it_chooses(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = saved(catalog, tmp_path, *range(10, 100, 10))
    choose = start.choose

    def then_lost(*asked: Any) -> Any:
        found = choose(*asked)
        lost = [file for file in catalog.show("run", found.plan.global_step) if Path(file.path).exists()]
        put_files(catalog, [file.amended(state=FileState.MISSING) for file in lost])
        Path(lost[0].path).unlink()
        return found

    monkeypatch.setattr(start, "choose", then_lost)
    (launch, _) = job.start(resume=False)
    with pytest.raises(
        RefusedError, match="every candidate state was deleted while launch L2 .* was choosing; end what removes"
    ):
        launch.resolve()
    assert not launch.facts.decided


def test_protected_since_the_plan(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40, 50, 60)
    plan = plan_gc(catalog.database, "run", LAST_2)
    catalog.pin("run", 10)
    catalog.tag("run", 20, "paper")
    start_from(catalog, job, 30)
    done = execute(catalog.database, plan)
    assert done.removed == (("L1", 40),)
    marked = "pinned or tagged since the plan was made"
    assert [each.reason for each in done.skipped] == [marked, marked, "a launch has begun to start from it"]


@pytest.mark.of_files
@pytest.mark.parametrize("change", ["grown", "touched", "replaced", "gone", "directory", "link"])
def test_a_file_that_is_another_one_by_now_stays(catalog: Catalog, tmp_path: Path, change: str) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    plan = plan_gc(catalog.database, "run", LAST_2)
    path = job.folder(1) / "net-1_10.ckpt"
    content = path.read_bytes()
    if change == "touched":
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
    if change == "grown":
        path.write_bytes(content + b"x")
    elif change == "replaced":
        path.write_bytes(bytes(reversed(content)))
    elif change == "directory":
        path.mkdir()
    elif change == "link":
        path.symlink_to(job.folder(0) / "net-1_10.ckpt")
    done = execute(catalog.database, plan)
    assert done.removed == (("L1", 20),)
    assert str(path) in done.skipped[0].reason
    assert (job.folder(0) / "net-1_10.ckpt").exists(), "the state stays as a whole"


@pytest.mark.of_files
def test_without_a_floor_the_newest_state_that_stays_is_looked_at(catalog: Catalog, tmp_path: Path) -> None:
    """MindSpore's `keep_checkpoint_max`, or whoever cleans up the disk, deleted what the plan keeps."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    plan = plan_gc(catalog.database, "run", Policy(keep_every=20, floor=0))
    (job.folder(1) / "net-4_10.ckpt").unlink()
    with pytest.raises(RefusedError, match="net-4_10.ckpt has changed since .*; make the plan again"):
        execute(catalog.database, plan, at_once=True)
    assert len(names(job.directory)) == 7
    assert catalog.resolve("run").plan.global_step == 30


def test_a_plan_that_was_made_with_another_catalog(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """Its run has another number there: the pins would be another run's."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    plan = plan_gc(catalog.database, "run", LAST_2)
    Job(other, tmp_path / "other", run="another").start()
    other.sync(job.directory)
    other.pin("run", 10)
    with pytest.raises(RefusedError, match="made with another catalog"):
        execute(other.database, plan)


def test_a_second_gc_says_that_one_is_at_work(catalog: Catalog, tmp_path: Path) -> None:
    saved(catalog, tmp_path, 10, 20, 30, 40)
    plan = plan_gc(catalog.database, "run", LAST_2)
    with GcLock(catalog.database, "run", plan.run_id):
        for action in (
            lambda: execute(catalog.database, plan),
            lambda: undo(catalog.database, "run"),
            lambda: purge(catalog.database, "run"),
        ):
            with pytest.raises(RefusedError, match=f"another gc, .* is at work .process {os.getpid()} on"):
                action()
        assert removed(plan_gc(catalog.database, "run", LAST_2)), "a plan needs no lock"
    assert execute(catalog.database, plan).files == 4
    assert execute(catalog.database, plan).files == 0, "another one has done it"


@pytest.mark.parametrize(
    ("owner", "lasting", "taken"),
    [
        ("elsewhere|1|1|x", timedelta(minutes=1), False),
        ("elsewhere|1|1|x", -timedelta(minutes=1), True),
        (this_process().replace(f"|{os.getpid()}|", f"|{2**22 + 1}|"), timedelta(minutes=1), True),
        (this_process().replace(f"|{os.getpid()}|", f"|{os.getpid()}|another"), timedelta(minutes=1), True),
    ],
    ids=["elsewhere", "elsewhere, its time over", "gone", "its number is another's now"],
)
def test_the_lock_of_a_process_that_died(
    catalog: Catalog, tmp_path: Path, owner: str, lasting: timedelta, *, taken: bool
) -> None:
    saved(catalog, tmp_path, 10, 20, 30, 40)
    plan = plan_gc(catalog.database, "run", LAST_2)
    now = datetime.now(timezone.utc)
    with catalog.database.write() as connection:
        removals.take_lock(connection, plan.run_id, owner, now, now + lasting)
    if taken:
        assert execute(catalog.database, plan).files == 4
    else:
        with pytest.raises(RefusedError, match="process 1 on elsewhere"):
            execute(catalog.database, plan)


def as_another_user(url: str, plan: GcPlan, home: Path) -> None:
    if os.getuid() == 0:
        give_to_nobody(home)
        os.setuid(NOBODY)
    done = execute(connect(url).database, plan)
    assert {trouble.reason for trouble in done.troubles} == {"Permission denied"}


def undo_as_another_user(url: str, home: Path) -> None:
    if os.getuid() == 0:
        give_to_nobody(home)
        os.setuid(NOBODY)
    troubles = undo(connect(url).database, "run").troubles
    assert {trouble.reason for trouble in troubles} == {"its directory cannot be looked at: Permission denied"}


def test_directories_that_may_not_be_written_to(sqlite_url: str, tmp_path: Path) -> None:
    """For real, as another user where the tests run as root."""
    catalog = connect(sqlite_url)
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    job.folder(1).chmod(0o555)
    plan = plan_gc(catalog.database, "run", LAST_2)
    do_apart(as_another_user, sqlite_url, plan, tmp_path)
    assert (job.folder(1) / "net-1_10.ckpt").exists()
    assert not (job.folder(0) / "net-1_10.ckpt").exists()
    job.folder(1).chmod(0)
    do_apart(undo_as_another_user, sqlite_url, tmp_path)
    job.folder(1).chmod(0o755)
    assert gc(catalog).troubles == ()
    assert len(names(job.directory)) == 4


@pytest.fixture
def full_soon(tmp_path: Path) -> Iterator[Path]:
    """A real file system that has room for no more than eighteen files and directories."""
    with small_disk(tmp_path / "small", "size=1m,nr_inodes=19") as home:
        yield home


@pytest.mark.of_files
def test_a_real_disk_that_is_full(catalog: Catalog, tmp_path: Path, full_soon: Path) -> None:
    """There is no room for the trash: it is said, nothing is lost, and `--now` needs none."""
    job, _ = started(catalog, full_soon / "d", 10, 20, 30, 40)
    before = tree(job.directory)
    done = gc(catalog)
    assert {trouble.reason for trouble in done.troubles} == {"No space left on device"}
    assert sorted(tree(job.directory).values()) == sorted(before.values())
    undo(catalog.database, "run")
    assert tree(job.directory) == before
    done = gc(catalog, at_once=True)
    assert (done.files, done.troubles) == (4, ())


def test_a_step_without_a_save_has_no_pin_to_remove(catalog: Catalog, tmp_path: Path) -> None:
    saved(catalog, tmp_path, 5)
    assert not catalog.unpin("run", 5)
    with pytest.raises(UsageError, match="no save of step 7"):
        catalog.unpin("run", 7)
