"""`runs` asks the same number of questions for any number of runs, and says of each what `list` says of its saves."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog
from ckptstore.catalog.tables import checkpoints, saves
from ckptstore.core.model import FileState
from ckptstore.errors import UsageError
from ckptstore.resume import overview
from ckptstore.resume.overview import RunRow
from ckptstore.retention.policy import Policy
from tests.jobs import Job, set_ending, started
from tests.resume.wide import RUN, Wide, statements

HISTORY = 300  # saves


def by_its_saves(catalog: Catalog, row: RunRow) -> tuple[object, object, int]:
    """The newest save, the newest restorable one and the bytes, by the list of all saves."""
    saves = catalog.saves(row.run)
    restorable = [save for save in saves if save.restorable and not save.abandoned]
    return next(iter(saves), None), next(iter(restorable), None), sum(save.bytes for save in saves)


def test_runs_cost_no_statements(catalog: Catalog, tmp_path: Path) -> None:
    counts = []
    for more in (1, 2):
        for _ in range(more):
            job = Job(catalog, tmp_path / f"{len(catalog.runs())}", 1, run=f"run-{len(catalog.runs())}")
            job.save(job.start(), 10, 20)
            job.start()
        with statements() as asked:
            rows = catalog.runs()
        assert [row.newest_restorable.global_step for row in rows if row.newest_restorable] == [20] * len(rows)
        counts.append(len(asked))
        with statements() as asked_of_saves:
            assert len(catalog.saves()) == 2 * len(rows)
        counts.append(len(asked_of_saves))
    assert counts[:2] == counts[2:]


def rows_read(catalog: Catalog, work: Callable[[], object]) -> int:
    """How many rows the database gives meanwhile."""
    with statements() as asked:
        work()
    with catalog.database.read() as connection:
        return sum(len(connection.exec_driver_sql(each.text, each.values).fetchall()) for each in asked)


def test_saves_without_a_file_are_not_read(catalog: Catalog, tmp_path: Path) -> None:
    wide = Wide(tmp_path / "ckpt", 2, kept=3)
    wide.write()
    wide.fill(catalog, HISTORY, gone=True)
    assert [save.global_step for save in catalog.saves(RUN)] == [HISTORY, HISTORY - 1, HISTORY - 2]
    assert rows_read(catalog, lambda: catalog.saves(RUN)) < HISTORY / 3
    with catalog.database.write() as connection:
        connection.execute(checkpoints.update().values(state=FileState.MISSING.value))
    assert catalog.runs()[0].last is None
    assert rows_read(catalog, catalog.runs) < HISTORY / 3


def test_the_saves_of_a_step_are_read_alone(catalog: Catalog, tmp_path: Path) -> None:
    wide = Wide(tmp_path / "ckpt", 2)
    wide.write()
    wide.fill(catalog, HISTORY)
    (save,) = overview.saves(catalog.database, RUN, step=7)
    assert save == next(each for each in catalog.saves(RUN) if each.global_step == 7)
    assert rows_read(catalog, lambda: overview.saves(catalog.database, RUN, step=7)) < HISTORY / 3


@pytest.mark.of_files
@pytest.mark.parametrize("limit", [-1, 1.5, "2", True])
def test_a_limit_that_is_no_number_of_rows_is_refused(catalog: Catalog, tmp_path: Path, limit: Any) -> None:
    """-1 as a limit would leave out the oldest row, and say nothing."""
    started(catalog, tmp_path, 10, 20, 30)
    for rows in (catalog.saves, catalog.files):
        with pytest.raises(UsageError, match=f"limit is {limit!r}"):
            rows(limit=limit)
        assert len(rows(limit=1)) == 1
        assert rows(limit=0) == []
        assert len(rows(limit=2**62, since=timedelta.max)) >= 3


def test_a_page_details_as_many_saves_as_have_no_more_files(catalog: Catalog, tmp_path: Path) -> None:
    started(catalog, tmp_path, 10, 20, 30)
    rows = list(catalog.saves("run"))
    detailed = [len(overview.details(catalog.database, rows, most_files=most).ranks) for most in (1, 2, 5, 6)]
    assert detailed == [0, 1, 2, 3]


def test_what_was_recorded_before_the_time_asked_for_is_left_out(catalog: Catalog, tmp_path: Path) -> None:
    started(catalog, tmp_path, 10, 20, 30)
    before = datetime.now(timezone.utc) - timedelta(days=3)
    with catalog.database.write() as connection:
        first = saves.c.global_step == 10
        connection.execute(saves.update().where(first).values(created_at=before))
        of_first = checkpoints.c.save_id.in_(sa.select(saves.c.id).where(first))
        connection.execute(checkpoints.update().where(of_first).values(created_at=before))
    for rows in (catalog.saves, catalog.files):
        assert {row.global_step for row in rows(since=timedelta(days=2))} == {20, 30}
        assert {row.global_step for row in rows(since=timedelta(days=4))} == {10, 20, 30}


@pytest.mark.parametrize("database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True)
def test_what_a_run_has_is_what_its_saves_are(catalog: Catalog, tmp_path: Path) -> None:
    """Where the newest saves tell all of it, and where only older ones can be restored."""
    started(catalog, tmp_path / "well", 10, 20, 30, 40, run="well")
    cut, ranks = started(catalog, tmp_path / "cut", 10, 20, run="cut")
    cut.save(ranks[:1], 30, 40, 50, 60)
    cut.save(cut.start()[1:], 30)
    replicas, ranks = started(catalog, tmp_path / "replicas", 10, run="replicas", layout="data_parallel")
    replicas.save(ranks[:1], 20, 30)
    ranks[0].record(step=30, loss=0.5)
    started(catalog, tmp_path / "back", 10, 20, 30, 40, 50, run="back")
    plan = catalog.resolve("back", step=20).plan
    assert plan is not None
    catalog.branch(plan)
    started(catalog, tmp_path / "less", 50, 60, 70, run="less")
    catalog.execute(catalog.plan_gc("less", Policy(keep_last=2)))
    catalog.pin("less", 60)
    catalog.tag("less", 70, "best")
    empty = Job(catalog, tmp_path / "empty", run="empty")
    set_ending(empty.start()[0], 5, 5, "RuntimeError")
    rows = {row.run: row for row in catalog.runs()}
    for row in rows.values():
        assert (row.last, row.newest_restorable, row.bytes) == by_its_saves(catalog, row), row.run
    found = {run: row.newest_restorable.global_step if row.newest_restorable else None for run, row in rows.items()}
    assert found == {"well": 40, "cut": 20, "replicas": 30, "back": 20, "less": 70, "empty": None}
    assert (rows["back"].launches, rows["back"].launches_last_day) == (1, 1)  # the branch is none
    assert rows["less"].trash_bytes
    assert rows["less"].last.tags == ("best",)
    assert (rows["replicas"].last.by_replicas, rows["replicas"].last.metrics) == (True, {"loss": 0.5})
    assert rows["empty"].status == "ended: RuntimeError"


def test_a_run_whose_files_a_scan_found_before_their_ranks_registered_them(catalog: Catalog, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path / "ckpt")
    ranks = job.start()
    paths = [job.write(launch, 10) for launch in ranks]
    catalog.scan(job.directory, run=RUN, world_size=len(ranks))
    for launch, path in zip(ranks, paths, strict=True):
        launch.register(path, global_step=10, optimizer_step=10)
    (row,) = catalog.runs()
    assert (row.launches, row.status) == (1, "training")
