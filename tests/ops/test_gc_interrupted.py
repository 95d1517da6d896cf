"""What a gc that was interrupted had not come to: it comes back, or goes after another look, as the run is by then."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from ckptstore.core.policy import Policy
from ckptstore.errors import UsageError
from ckptstore.ops.connect import connect
from ckptstore.ops.trash import purge, undo
from ckptstore.storage.trash import Disk

from .jobs import Job
from .test_gc import gc, names, saved

if TYPE_CHECKING:
    from pathlib import Path

    from ckptstore.ops.connect import Catalog

STEPS = (10, 20, 30, 40, 50)


class Interrupted(Disk):
    """Ctrl-C before so many files were moved or deleted."""

    def __init__(self, after: int) -> None:
        def limited(real: Any) -> Any:
            def call(*args: Any, **options: Any) -> None:
                nonlocal after
                after -= 1
                if after < 0:
                    raise KeyboardInterrupt
                real(*args, **options)

            return call

        for name in ("rename", "unlink"):
            setattr(self, name, limited(getattr(Disk, name)))


def interrupt(catalog: Catalog, after: int, *, at_once: bool = False) -> None:
    with pytest.raises(KeyboardInterrupt):
        gc(catalog, disk=Interrupted(after), at_once=at_once)


def lose(job: Job, *steps: int) -> None:
    for step in steps:
        for rank in (0, 1):
            (job.folder(rank) / f"net-{step // 10}_10.ckpt").unlink()


def there(job: Job) -> set[int]:
    """The steps of which every rank's file is at its place."""
    every = names(job.directory)
    return {step for step in STEPS if {f"rank_{rank}/net-{step // 10}_10.ckpt" for rank in (0, 1)} <= every}


def test_undo_brings_back_what_was_not_deleted_yet(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, *STEPS)
    interrupt(catalog, 2, at_once=True)
    lose(job, 40, 50)
    assert catalog.resolve("run").plan is None
    back = undo(catalog.database, "run")
    assert (back.files, back.gone) == (4, 2)
    assert catalog.resolve("run").plan.global_step == 30  # type: ignore[union-attr]


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
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(str(catalog.database.file))) as now, closing(sqlite3.connect(backup)) as then:
        now.backup(then)
    assert undo(catalog.database, "run").files == 6
    catalog.pin("run", 10)
    lose(job, 40, 50)
    old = connect(f"sqlite:///{backup}")
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
    assert old.resolve("run").plan.global_step == 30  # type: ignore[union-attr]


@pytest.mark.parametrize("at_once", [False, True])
def test_another_policy_by_then(catalog: Catalog, tmp_path: Path, *, at_once: bool) -> None:
    job = saved(catalog, tmp_path, *STEPS)
    interrupt(catalog, 2, at_once=at_once)
    done = gc(catalog, Policy(keep_last=3))
    assert (done.removed, there(job)) == ((("L1", 20),), {30, 40, 50})
    assert catalog.pin("run", 30)


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
    ranks = job.start()
    for launch in ranks:
        job.announce(launch)
        path = job.write(launch, 15, name="net_train-step_15.ckpt")
        path.with_suffix(".mindir").write_bytes(b"graph")
        launch.register(path, kind="graceful_exit", global_step=15)
    for step in (20, 30):
        job.save(ranks, step)
    for after in range(4):
        interrupt(catalog, after)
        done = gc(catalog)
        assert (done.files, {name[-9:] for name in names(job.directory)}) == (4, {"2_10.ckpt", "3_10.ckpt"})
        assert undo(catalog.database, "run").files == 4
