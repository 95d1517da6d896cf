"""A state of the floor may be reached through a link; what goes never is."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.errors import RefusedError
from ckptstore.retention.execute import execute
from ckptstore.retention.plan import plan_gc
from tests.retention.builders import LAST_2, doubts, gc, names, saved, tree
from tests.retention.gc_world import build

pytestmark = pytest.mark.of_files


def moved_behind_a_link(path: Path, away: Path) -> Path:
    """Where the file or directory is now that a link stands for."""
    away.mkdir(exist_ok=True)
    there = path.rename(away / f"{path.parent.name}-{path.name}")
    path.symlink_to(there)
    return there


def test_a_file_of_the_floor_that_is_a_link_to_another_one_by_now(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    there = moved_behind_a_link(job.folder(0) / "net-4_10.ckpt", tmp_path / "away")
    plan = plan_gc(catalog.database, "run", LAST_2)
    there.write_bytes(there.read_bytes()[:-1])
    with pytest.raises(RefusedError, match="net-4_10.ckpt has changed since .*; make the plan again"):
        execute(catalog.database, plan)
    there.unlink()
    with pytest.raises(RefusedError, match="net-4_10.ckpt has changed since .*; make the plan again"):
        execute(catalog.database, plan)
    assert len(names(job.directory) - {"rank_0/net-4_10.ckpt"}) == 7


def test_a_directory_of_the_floor_that_is_a_link(catalog: Catalog, tmp_path: Path) -> None:
    """What was saved there later is the floor; what goes is where it was before."""
    job = saved(catalog, tmp_path, 10, 20)
    job.directory = tmp_path / "later"
    job.folder(0).mkdir(parents=True)
    moved_behind_a_link(job.folder(0), tmp_path / "away")
    job.save(job.start(), 30, 40)
    assert gc(catalog).removed == (("L1", 10), ("L1", 20))
    assert names(tmp_path / "data") == set()
    assert len(names(tmp_path / "away")) == 2


def test_a_plan_that_removes_nothing_is_carried_out(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20)
    plan = plan_gc(catalog.database, "run", LAST_2)
    (job.folder(0) / "net-2_10.ckpt").unlink()
    assert execute(catalog.database, plan).removed == ()


@pytest.mark.parametrize("place", ["rank_1/net-2_10.ckpt", "rank_1", "ttp/ttp_saved_checkpoints-step_50/rank_1"])
def test_what_would_go_through_a_link_stays(catalog: Catalog, tmp_path: Path, place: str) -> None:
    job = build(catalog, tmp_path / "data")
    away = tmp_path / "away"
    moved_behind_a_link(job.directory / place, away)
    before = tree(away)
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert set(doubts(plan).values()) == {f"{job.directory / place} is a link: no link is followed"}
    kept = {verdict.state.key for verdict in plan.decision.keep}
    execute(catalog.database, plan)
    assert tree(away) == before
    for launch, step in kept:
        assert {file.state.value for file in catalog.show("run", step) if file.launch == launch} == {"complete"}
