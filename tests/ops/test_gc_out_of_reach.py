"""The trash of a run: on a disk that is away for a while, and of steps that somebody wants to protect by then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ckptstore.core.policy import Policy
from ckptstore.errors import RefusedError
from ckptstore.ops.trash import purge, undo

from .test_gc import gc, names, saved, tree

if TYPE_CHECKING:
    from pathlib import Path

    from ckptstore.ops.connect import Catalog


def test_a_step_in_the_trash_is_not_said_to_be_protected(catalog: Catalog, tmp_path: Path) -> None:
    """It would be purged all the same."""
    saved(catalog, tmp_path, 10, 20, 30, 40)
    gc(catalog)
    with pytest.raises(RefusedError, match="gc has removed step 10 .*; first, while it is there: ckptstore undo run"):
        catalog.pin("run", 10)
    with pytest.raises(RefusedError, match="gc has removed step 10"):
        catalog.tag("run", 10, "paper")
    undo(catalog.database, "run")
    assert catalog.pin("run", 10)


@pytest.mark.parametrize("action", ["undo", "purge"])
def test_trash_on_a_disk_that_is_not_mounted_is_not_forgotten(catalog: Catalog, tmp_path: Path, action: str) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    before = tree(job.directory)
    gc(catalog)
    job.folder(1).rename(tmp_path / "away")
    done = undo(catalog.database, "run") if action == "undo" else purge(catalog.database, "run", at_once=True)
    assert {trouble.reason for trouble in done.troubles} == {"its directory is not there: it may not be mounted"}
    (tmp_path / "away").rename(job.folder(1))
    done = undo(catalog.database, "run") if action == "undo" else purge(catalog.database, "run", at_once=True)
    assert done.troubles == ()
    assert set(tree(job.directory)) == names(job.directory)
    assert (tree(job.directory) == before) == (action == "undo")


@pytest.mark.xfail(
    strict=True, reason="the newest gc of which something is in the trash is chosen, whatever undo can do"
)
def test_undo_reaches_the_gc_before_one_whose_file_is_in_the_way(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40, 50)
    gc(catalog, Policy(keep_last=4))
    gc(catalog, Policy(keep_last=3))
    (job.folder(0) / "net-2_10.ckpt").write_bytes(b"another")
    for _ in range(3):
        undo(catalog.database, "run")
    assert (job.folder(0) / "net-1_10.ckpt").exists()
