"""What journals say of a run holds for gc and purge too; what nobody can read may hold as well."""

import os
import shutil
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.disk.name_claims import FOLDER
from ckptstore.errors import RefusedError
from ckptstore.journal import jsonl
from ckptstore.retention import stored_policy
from ckptstore.retention.execute import execute
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.retention.purge import purge
from ckptstore.training.retention_thread import RetentionThread
from tests.jobs import Job
from tests.retention.builders import LAST_2, gc, removed, saved, tree
from tests.retention.gc_world import LONG_AGO


@pytest.fixture
def other(tmp_path: Path) -> Catalog:
    """Another catalog, which knows the run by its journals."""
    return connect(f"sqlite:///{tmp_path / 'other.db'}")


def end_in_a_newer_entry(path: Path) -> None:
    with path.open("ab") as file:
        file.write(jsonl.encode({"t": "pin", "step": 10, "v": jsonl.VERSION + 1}))


def test_nothing_goes_while_a_journal_was_not_read(catalog: Catalog, tmp_path: Path) -> None:
    """It may tell that a step is pinned, or that a launch starts from it."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    made_before = plan_gc(catalog.database, "run", LAST_2)
    assert removed(made_before) == [("L1", 20), ("L1", 10)]
    before = tree(job.directory)
    unread = Path(jsonl.journals_in(str(job.folder(1)))[0])
    end_in_a_newer_entry(unread)
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == []
    assert [each.path for each in plan.unseen] == [str(unread)]
    assert all("may protect it" in verdict.state.doubt for verdict in plan.decision.keep)
    done = execute(catalog.database, made_before)
    assert (done.removed, {each.reason for each in done.skipped}) == ((), {plan.decision.keep[0].state.doubt})
    assert tree(job.directory) == before


def test_a_training_that_collects_hears_why_nothing_goes(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30)
    unread = Path(jsonl.journals_in(str(job.folder(1)))[0])
    end_in_a_newer_entry(unread)
    ranks = job.start()
    thread = RetentionThread(ranks[0], LAST_2)
    thread.file_registered(job.save(ranks, 40)[0])
    thread.finish(10)
    assert f"gc is kept from its work by {unread}" in caplog.text
    assert {file.state.value for file in catalog.files("run")} == {"complete"}


def test_a_purge_hears_what_was_pinned_through_another_catalog(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    other.scan(job.directory, run="run")
    assert gc(catalog).files == 4
    other.pin("run", 20)
    done = purge(catalog.database, "run", at_once=True)
    assert (done.files, done.waiting) == (2, 2)
    assert catalog.undo("run").files == 2
    assert [save.tally.global_step for save in catalog.saves("run") if save.tally.files] == [40, 30, 20]


def test_no_purge_while_a_journal_was_not_read(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    assert gc(catalog).files == 4
    end_in_a_newer_entry(Path(jsonl.journals_in(str(job.folder(1)))[0]))
    with pytest.raises(RefusedError, match=r"nothing of run 'run' is deleted: .*rank_1-.*.jsonl, which may protect it"):
        purge(catalog.database, "run", at_once=True)
    assert catalog.undo("run").files == 4


def test_an_empty_mount_point_is_no_directory_whose_files_were_deleted(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    away = tmp_path / "away"
    job.folder(1).rename(away)
    job.folder(1).mkdir()
    before = tree(job.directory)
    plan = plan_gc(catalog.database, "run", Policy(keep_every=20))
    assert removed(plan) == []
    assert [each.path for each in plan.unseen] == [str(job.folder(1))]
    assert gc(catalog).files == 0
    assert tree(job.directory) == before
    job.folder(1).rmdir()
    away.rename(job.folder(1))
    assert [save.tally.files for save in catalog.saves("run")] == [2, 2, 2, 2]
    assert gc(catalog).files == 4


def test_a_directory_that_is_gone_for_good_holds_nothing_up(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20)
    ranks = [catalog.join("run", rank=rank, world_size=2, launch_id="L2") for rank in (0, 1)]
    elsewhere = Job(catalog, tmp_path / "elsewhere")
    elsewhere.save(ranks, 30, 40)
    shutil.rmtree(job.folder(1))
    for path in job.folder(0).glob("*.ckpt"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert gc(catalog).files == 0
    (job.folder(1) / FOLDER).mkdir(parents=True)
    catalog.scan(job.folder(1), run="run")
    assert gc(catalog).files == 2


@pytest.mark.parametrize("what", ["lost", "moved"])
def test_a_pin_is_journalled_where_there_is_a_disk(catalog: Catalog, other: Catalog, tmp_path: Path, what: str) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    root = job.directory
    if what == "lost":
        shutil.rmtree(job.folder(0))
    else:
        root = job.directory.rename(tmp_path / "z-moved")
        catalog.scan(root, run="run", world_size=2)
    catalog.pin("run", 10)
    catalog.tag("run", 20, "good")
    stored_policy.store(catalog.database, "run", LAST_2)
    other.scan(root, run="run", world_size=2)
    assert [(save.tally.global_step, save.pinned, save.tags) for save in other.saves("run")][2:] == [
        (20, False, ("good",)),
        (10, True, ()),
    ]
    assert stored_policy.show(other.database, "run") == LAST_2
