"""One file under two paths, as through a link above its directory: gc must not take the one for another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ckptstore.ops.collect import execute
from ckptstore.ops.retention import plan_gc

from .test_gc import LAST_2, gc, names, saved

if TYPE_CHECKING:
    from pathlib import Path

    from ckptstore.ops.connect import Catalog


def test_a_tree_that_is_scanned_through_a_link_too_keeps_its_floor(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    link = tmp_path / "link"
    link.symlink_to(job.directory)
    catalog.scan(link, run="run", world_size=2)
    gc(catalog, LAST_2)
    assert names(job.directory) >= {f"rank_{rank}/net-{end}.ckpt" for rank in (0, 1) for end in ("3_10", "4_10")}


@pytest.mark.xfail(strict=True, reason="a scan through a link takes another run's files into a run of its own")
def test_a_tree_that_is_scanned_through_a_link_keeps_another_runs_pins(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    catalog.pin("run", 10)
    link = tmp_path / "link"
    link.symlink_to(job.directory)
    catalog.scan(link, run="other", world_size=2)
    execute(catalog.database, plan_gc(catalog.database, "other", LAST_2))
    assert (job.folder(0) / "net-1_10.ckpt").exists()
