"""What journals say of a run holds for gc and purge too; what nobody can read may hold as well."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.journal import jsonl
from ckptstore.retention.execute import execute
from ckptstore.retention.plan import plan_gc
from ckptstore.training.retention_thread import RetentionThread
from tests.retention.builders import LAST_2, removed, saved, tree


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
    assert all("may have pins or tags" in verdict.state.doubt for verdict in plan.decision.keep)
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
    assert f"gc could not do all: {unread}" in caplog.text
    assert {file.state.value for file in catalog.files("run")} == {"complete"}
