"""Checkpoints of several files cannot be moved in one step: gc moves none of their files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.retention.decide import Why
from ckptstore.retention.plan import plan_gc
from tests.foreign_bytes import pytorch, shards, tensorflow
from tests.jobs import Job
from tests.retention.builders import LAST_2, gc, names, removed


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("make", [tensorflow, shards])
def test_all_of_them_stay_and_the_plan_says_why(
    catalog: Catalog, tmp_path: Path, make: Callable[[Path], Path], *, at_once: bool
) -> None:
    launch = catalog.join("run")
    for step in (10, 20, 30, 40):
        launch.register(make(tmp_path / f"at-{step}"), global_step=step)
    before = names(tmp_path)
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == []
    kept = {verdict.state.global_step: verdict for verdict in plan.decision.keep}
    assert [(each.rule, each.detail) for each in kept[10].reasons] == [
        (Why.DOUBT, f"{tmp_path}/at-10 is several files ({FORMATS[make]}), of which gc removes none: delete it by hand")
    ]
    assert kept[10].state.bytes > 0
    assert gc(catalog, at_once=at_once).removed == ()
    assert names(tmp_path) == before


FORMATS = {tensorflow: "tensorflow", shards: "directory"}


def test_a_file_of_pytorch_goes_as_any_other(catalog: Catalog, tmp_path: Path) -> None:
    launch = catalog.join("run")
    paths = [pytorch(tmp_path / f"{step}.pth.tar", at=step) for step in (10, 20, 30)]
    for path in paths:
        launch.register(path, global_step=int(path.name.split(".")[0]))
    assert gc(catalog).removed == ((launch.id, 10),)
    assert [path.exists() for path in paths] == [False, True, True]
    catalog.undo("run")
    assert paths[0].exists()


def test_what_mindspore_cannot_load_does_not_count_for_what_it_can(catalog: Catalog, tmp_path: Path) -> None:
    """Before, the newest two were of PyTorch, and every state of MindSpore went."""
    job = Job(catalog, tmp_path / "data")
    ranks = job.begin()
    job.save(ranks, 10, 20, 30)
    for step in (40, 50, 60):
        for rank in ranks:
            rank.register(pytorch(job.folder(rank.rank) / f"{step}.pth"), global_step=step)
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == [("L1", 10)]
    kept = {verdict.state.global_step: verdict.state for verdict in plan.decision.keep}
    assert [step for step, state in kept.items() if state.counts] == [30, 20]
    assert "MindSpore cannot load it" in kept[60].doubt
