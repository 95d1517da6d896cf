"""Retention of a run whose history turns while gc is at work: branches on purpose, loads that failed."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.errors import RefusedError
from ckptstore.retention.execute import execute
from ckptstore.retention.plan import plan_gc
from tests.jobs import newest
from tests.retention.builders import LAST_2, gc, saved


@pytest.mark.parametrize("at_once", [False, True])
def test_a_branch_off_from_a_state_that_gc_was_faster_to_take_is_refused(
    catalog: Catalog, tmp_path: Path, *, at_once: bool
) -> None:
    saved(catalog, tmp_path, 10, 20, 30, 40)
    chosen = catalog.resolve("run", step=10).plan
    gc(catalog, at_once=at_once)
    with pytest.raises(RefusedError, match="step 10 of run 'run' was removed since it was chosen; if gc .* undo"):
        catalog.branch(chosen)
    assert newest(catalog) == 40


def test_a_floor_that_launches_could_not_load_since_the_plan(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    plan = plan_gc(catalog.database, "run", LAST_2)
    for step in (40, 30):
        ranks = job.start()
        assert ranks[0].facts.parent_step == step
        ranks[0].load_failed(catalog.show("run", step)[0], "Input/output error")
    with pytest.raises(RefusedError, match="but it no longer counts: .*; make the plan again"):
        execute(catalog.database, plan)
    assert newest(catalog) == 20
