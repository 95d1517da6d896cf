"""What is in the trash is known to a catalog that is made anew: the journals tell what gc did."""

import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import FileState
from ckptstore.retention.execute import execute
from ckptstore.retention.in_trash import purge
from ckptstore.retention.policy import Policy
from ckptstore.scan import scan as scan_module
from ckptstore.scan.tree import Tree, look_at
from tests import ckpt_bytes
from tests.jobs import Job, begun
from tests.journal.builders import states

GONE, KEPT, TRASHED = {FileState.MISSING}, {FileState.COMPLETE}, {FileState.TRASHED}


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    """Steps 5 to 20, of which a gc has taken the first two."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, 15, 20)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)))
    return job


def test_the_trash_of_a_renamed_run_is_told_by_its_new_name(job: Job, other: Catalog) -> None:
    job.catalog.rename("run", "thesis")
    found = other.scan(job.directory)
    assert (found.run, [trash.run for trash in found.trash]) == ("thesis", ["thesis"])


def test_what_is_in_the_trash_comes_back_by_a_new_catalog(job: Job, other: Catalog) -> None:
    (found,) = other.scan(job.directory, dry_run=True, run="run").trash
    assert (found.files, found.run) == (4, "run")
    assert other.runs() == []
    (found,) = other.scan(job.directory).trash
    size = sum(path.stat().st_size for path in job.directory.rglob("trash/*/*.ckpt"))
    assert (found.run, found.files, found.bytes) == ("run", 4, size)
    assert states(other) == {5: TRASHED, 10: TRASHED, 15: KEPT, 20: KEPT}
    assert other.scan(job.directory).trash == (), "it is this catalog's now"
    assert job.catalog.scan(job.directory).trash == (), "it is that one's as ever"
    purged = purge(other.database, "run", now=datetime.now(timezone.utc) + timedelta(hours=23))
    assert (purged.files, purged.waiting) == (0, 4), "its grace is what its gc promised"
    assert other.undo("run").files == 4
    assert states(other) == {5: KEPT, 10: KEPT, 15: KEPT, 20: KEPT}
    assert len(list(job.directory.glob("rank_*/*.ckpt"))) == 8
    job.catalog.sync("run")
    assert states(job.catalog) == {5: KEPT, 10: KEPT, 15: KEPT, 20: KEPT}


def test_what_a_gc_deletes_while_a_scan_looks_does_not_count_again(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the tree was looked at, and on record as gone by the time that the records were read."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, 15, 20)
    for step in (5, 15):
        catalog.pin("run", step)

    def look_before(*asked: Any) -> Tree:
        tree = look_at(*asked)
        execute(catalog.database, catalog.plan_gc("run", Policy(keep_last=1, floor=1)), at_once=True)
        return tree

    monkeypatch.setattr(scan_module, "look_at", look_before)
    catalog.scan(job.directory)
    assert states(catalog) == {5: KEPT, 10: GONE, 15: KEPT, 20: KEPT}


def test_a_file_that_goes_while_a_scan_looks_does_not_hide_the_directory(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them was to prove that the disk is mounted: the scan told of files that it did not record."""
    for step in (5, 10):
        ckpt_bytes.write(tmp_path / "ckpt" / f"net-1_{step}.ckpt", step, step)

    def look_before(*asked: Any) -> Tree:
        tree = look_at(*asked)
        Path(next(iter(tree.checkpoints))).unlink()
        return tree

    monkeypatch.setattr(scan_module, "look_at", look_before)
    adopted = catalog.scan(tmp_path / "ckpt", run="run", world_size=1).adopted
    assert [file.path for file in catalog.files("run")] == [file.path for file in adopted]
    assert len(adopted) == 1


@pytest.mark.parametrize("how", ["link", "copy"])
@pytest.mark.parametrize("all_of_it", [False, True])
def test_trash_of_which_the_file_is_at_its_place_is_not_in_the_trash(
    job: Job, other: Catalog, how: str, *, all_of_it: bool
) -> None:
    """An undo was killed between its link and its unlink, or somebody copied files back; then the catalog was lost."""
    trashed = sorted(job.directory.rglob("trash/*/*.ckpt"))
    assert len(trashed) == 4
    for path in trashed if all_of_it else trashed[:1]:
        home = path.parents[3] / path.name
        if how == "link":
            home.hardlink_to(path)
        else:
            shutil.copy2(path, home)
    (found,) = other.scan(job.directory).trash
    assert found.files == 4
    assert states(other) == {5: TRASHED, 10: TRASHED, 15: KEPT, 20: KEPT}, "until undo looks at its place"
    other.undo("run")
    assert states(other) == {5: KEPT, 10: KEPT, 15: KEPT, 20: KEPT}
    other.purge("run", now=True)
    assert list(job.directory.rglob("trash/*")) == []
    assert len(list(job.directory.glob("rank_*/*.ckpt"))) == 8
    assert other.resolve("run", step=10).plan is not None


def test_what_was_brought_back_or_purged_is_not_taken_up_again(job: Job, other: Catalog) -> None:
    other.scan(job.folder(0), run="run")
    other.purge("run", now=True)
    other.scan(job.folder(1), run="run")
    assert other.undo("run").files == 2
    assert other.scan(job.directory, run="run").trash == ()
    assert len(list(job.folder(0).glob("*.ckpt"))) == 2
    assert len(list(job.folder(1).glob("*.ckpt"))) == 4
