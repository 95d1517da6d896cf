"""What a gc that was interrupted had not come to: it comes back, or goes after another look, as the run is by then."""

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import removals as rows
from ckptstore.catalog.tables import collections
from ckptstore.errors import UsageError
from ckptstore.retention import execute
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.retention.purge import purge
from ckptstore.retention.undo import undo
from tests.contents import back_up
from tests.jobs import Job, started
from tests.retention.builders import gc, interrupt, names, saved
from tests.trash_calls import MOVES, failing_after

DAY = timedelta(days=1)
STEPS = (10, 20, 30, 40, 50)


def lose(job: Job, *steps: int) -> None:
    for step in steps:
        for rank in (0, 1):
            (job.folder(rank) / f"net-{step // 10}_10.ckpt").unlink()


def no_trash(job: Job) -> Path:
    """Have something in the way of rank 0's trash."""
    home = job.folder(0) / ".ckptstore" / "trash"
    home.parent.mkdir(exist_ok=True)
    home.write_bytes(b"in the way")
    return home


def there(job: Job) -> set[int]:
    """The steps of which every rank's file is at its place."""
    every = names(job.directory)
    return {step for step in STEPS if {f"rank_{rank}/net-{step // 10}_10.ckpt" for rank in (0, 1)} <= every}


@pytest.mark.parametrize("at_once", [False, True])
def test_what_the_floor_has_come_to_need_stays(catalog: Catalog, tmp_path: Path, *, at_once: bool) -> None:
    job = saved(catalog, tmp_path, *STEPS)
    interrupt(catalog, 2, at_once=at_once)
    lose(job, 40, 50)
    gc(catalog)
    assert there(job) == {20, 30}
    assert {save.tally.global_step for save in catalog.saves("run") if save.restorable} == {20, 30}


@pytest.mark.parametrize("action", ["gc", "gc --now", "purge"])
def test_a_catalog_of_before_its_gc_was_undone(sqlite_url: str, tmp_path: Path, action: str) -> None:
    """A backup that was made while files were moved: what it says of them is long past."""
    catalog = connect(sqlite_url)
    job = saved(catalog, tmp_path, *STEPS)
    interrupt(catalog, 0)
    backup = back_up(catalog, tmp_path / "backup.db")
    assert undo(catalog.database, "run").files == 6
    catalog.pin("run", 10)
    lose(job, 40, 50)
    old = connect(backup)
    old.sync(job.directory)
    if action == "purge":
        purge(old.database, "run", at_once=True)
        assert there(job) == {10, 20, 30}
        old.sync(job.directory)
        old.pin("run", 10)
        gc(old)
    else:
        gc(old, at_once=action == "gc --now")
    assert there(job) >= {20, 30}
    assert old.resolve("run").plan.global_step == 30


def test_purge_with_a_catalog_of_before_undo_gives_back_what_is_there(sqlite_url: str, tmp_path: Path) -> None:
    """Nothing was deleted: the states count again, but for one whose file is gone, or is another one."""
    catalog = connect(sqlite_url)
    job = saved(catalog, tmp_path, *STEPS)
    assert gc(catalog).files == 6
    backup = back_up(catalog, tmp_path / "backup.db")
    assert undo(catalog.database, "run").files == 6
    (job.folder(0) / "net-1_10.ckpt").unlink()
    (job.folder(0) / "net-2_10.ckpt").write_bytes(b"another")
    old = connect(backup)
    done = purge(old.database, "run", at_once=True)
    assert (done.files, done.bytes, done.waiting, done.troubles) == (0, 0, 0, ())
    assert there(job) == {20, 30, 40, 50}
    assert old.resolve("run", step=30).plan is not None
    states = {file.path.partition("/data/")[2]: file.state.value for file in old.files("run")}
    gone = {path for path, state in states.items() if state != "complete"}
    assert gone == {"rank_0/net-1_10.ckpt"}
    assert gc(old, Policy(keep_last=3)).removed == (("L1", 10),), "another file, written just now, may be a whole one"


def test_one_undo_brings_back_both_what_it_moved_and_what_the_next_one_moves(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, *STEPS)
    interrupt(catalog, 3)
    assert gc(catalog).files == 6
    assert there(job) == {40, 50}
    assert undo(catalog.database, "run").files == 6
    assert there(job) == set(STEPS)
    with pytest.raises(UsageError, match="nothing of run 'run' is in the trash"):
        undo(catalog.database, "run")


def test_the_graph_of_a_graceful_exit_goes_with_its_file_all_the_same(catalog: Catalog, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path / "data")
    ranks = job.begin()
    for launch in ranks:
        path = job.write(launch, 15, name="net_train-step_15.ckpt")
        path.with_suffix(".mindir").write_bytes(b"graph")
        launch.register(path, kind="graceful_exit", global_step=15)
    job.save(ranks, 20, 30)
    for after in range(4):
        interrupt(catalog, after)
        done = gc(catalog)
        assert (done.files, {name[-9:] for name in names(job.directory)}) == (4, {"2_10.ckpt", "3_10.ckpt"})
        assert undo(catalog.database, "run").files == 4


def test_what_was_written_where_the_interrupted_gc_took_a_file_goes_too(catalog: Catalog, tmp_path: Path) -> None:
    """Its place in that trash is taken; in a new one it is not, and each comes back from its own."""
    job, ranks = started(catalog, tmp_path / "data", 10, 20, 30, 40)
    interrupt(catalog, 1)
    again = job.write(ranks[0], 50, name="net-1_10.ckpt")
    ranks[0].register(again, global_step=50, optimizer_step=50)
    ranks[1].register(job.write(ranks[1], 50), global_step=50, optimizer_step=50)
    job.save(ranks, 60, 70)
    done = gc(catalog)
    assert (("L1", 50) in done.removed, done.troubles) == (True, ())
    assert names(job.directory) == {f"rank_{rank}/net-{step // 10}_10.ckpt" for rank in (0, 1) for step in (60, 70)}
    assert undo(catalog.database, "run").files == 9
    assert catalog.resolve("run", step=50).plan is not None
    last = undo(catalog.database, "run")
    assert [trouble.path for trouble in last.troubles] == [str(again)]
    assert catalog.resolve("run", step=50).plan is not None
    again.unlink()
    assert undo(catalog.database, "run").files == 1
    assert catalog.resolve("run", step=10).plan is not None


def a_day_later(catalog: Catalog) -> None:
    with catalog.database.write() as connection:
        for each in rows.collections_of(connection, 1):
            connection.execute(
                collections.update()
                .where(collections.c.id == each.id)
                .values(created_at=each.created_at - 2 * DAY, purge_after=each.purge_after - 2 * DAY)
            )


@pytest.mark.parametrize("after", [0, 3])
def test_the_grace_begins_when_the_gc_has_ended(catalog: Catalog, tmp_path: Path, after: int) -> None:
    saved(catalog, tmp_path, *STEPS)
    interrupt(catalog, after)
    a_day_later(catalog)
    done = gc(catalog)
    assert (done.files, done.purged_files) == (6, 0)
    assert purge(catalog.database, "run").waiting == 6
    a_day_later(catalog)
    assert purge(catalog.database, "run").files == 6


@pytest.mark.parametrize("is_link", [False, True])
def test_undo_gives_back_what_never_moved(catalog: Catalog, tmp_path: Path, *, is_link: bool) -> None:
    """The trash cannot be used, before and after: every file is at its place all the time."""
    job = saved(catalog, tmp_path, *STEPS)
    for rank in (0, 1):
        trash = job.folder(rank) / ".ckptstore" / "trash"
        if is_link:
            trash.symlink_to(tmp_path)
        else:
            trash.write_bytes(b"in the way")
    assert len(gc(catalog).troubles) == 6
    assert catalog.resolve("run", step=30).plan is None
    back = undo(catalog.database, "run")
    assert (back.files, back.gone, back.troubles) == (6, 0, ())
    assert there(job) == set(STEPS)
    assert catalog.resolve("run", step=30).plan is not None
    assert catalog.pin("run", 30)


def test_what_is_refused_is_tried_once_a_gc(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many portions come after it."""
    monkeypatch.setattr(execute, "PORTION", 2)
    job = saved(catalog, tmp_path, *STEPS)
    home = no_trash(job)
    for _ in range(2):
        assert len(gc(catalog).troubles) == 3
    home.unlink()
    assert gc(catalog).files == 3
    assert [undo(catalog.database, "run").files for _ in range(2)] == [3, 3]
    assert there(job) == set(STEPS)


def test_a_later_gc_does_not_shorten_the_grace_of_one_that_was_interrupted(catalog: Catalog, tmp_path: Path) -> None:
    saved(catalog, tmp_path, *STEPS)
    month, hour = Policy(keep_last=2, grace=30 * DAY), Policy(keep_last=2, grace=timedelta(hours=1))
    with suppress(KeyboardInterrupt), failing_after(3, MOVES, KeyboardInterrupt()):
        execute.execute(catalog.database, plan_gc(catalog.database, "run", month))
    done = execute.execute(catalog.database, plan_gc(catalog.database, "run", hour))
    in_two_hours = datetime.now(timezone.utc) + timedelta(hours=2)
    assert done.troubles == ()
    assert purge(catalog.database, "run", now=in_two_hours).files == 0
    with catalog.database.read() as connection:
        (found,) = rows.collections_of(connection, 1)
    assert found.purge_after > in_two_hours + 29 * DAY
    assert purge(catalog.database, "run", now=in_two_hours + 30 * DAY).files == 6
