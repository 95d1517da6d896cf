"""Trees that real MindSpore runs left are scanned into an empty catalog: it resolves as the one that was kept live."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ckptstore.ops.connect import Catalog, connect
from ckptstore.storage.claims import FOLDER

from .running import Run


def plan_of(catalog: Catalog, run: str = "run") -> tuple[int, list[tuple[int, str, str]]]:
    plan = catalog.resolve(run).plan
    assert plan is not None
    return plan.global_step, [(item.rank, item.source.kind.value, item.source.path) for item in plan.ranks]


def scanned(run: Run, tmp_path: Path, **asked: Any) -> Catalog:
    """A new catalog made of the tree; without its journals, which would tell it all."""
    for path in list(run.out.rglob(FOLDER)):
        shutil.rmtree(path)
    catalog = connect(str(tmp_path / "scanned.db"))
    done = catalog.scan(run.out, run="run", **asked)
    assert done.uncertain == (), done.uncertain
    assert not [skipped for skipped in done.skipped if "final" in skipped.path]
    return catalog


@pytest.mark.parametrize(
    "launches",
    [
        [{"fault": "kill 17"}],
        [{"fault": "raise 17"}],
        [{"fault": "raise-before 18"}],
        [{"fault": "kill 17"}, {"fault": "raise 8"}, {"fault": "kill 4"}],
        [{"fault": "kill 17", "config": {"format": "safetensors", "exception_save": False}}],
        [{"fault": "exit-flag 12", "exits": True}, {"fault": "exit-signal 6", "exits": True}],
    ],
)
def test_a_scan_finds_what_the_registrar_knew(tmp_path: Path, launches: list[dict[str, Any]]) -> None:
    run = Run(tmp_path / "run")
    for asked in launches:
        run.launch(**asked)
    live = plan_of(run.catalog)
    steps = {file.path: file.global_step for file in run.catalog.files("run") if file.state.value == "complete"}
    catalog = scanned(run, tmp_path, world_size=1)
    step, sources = plan_of(catalog)
    assert step == live[0]
    if not any(asked.get("exits") for asked in launches):  # which of two whole files of one state is taken may differ
        assert sources == live[1]
    assert {file.path: file.global_step for file in catalog.files("run")} == steps
    again = catalog.scan(run.out, run="run", world_size=1)
    assert (again.adopted, again.damaged, again.missing, again.known) == ((), (), (), len(steps))
