"""`docs/prune.sql`: what is forgotten of a large catalog, and what is not."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.core.model import FileState
from ckptstore.errors import NothingRestorableError
from ckptstore.retention.policy import Policy
from tests.jobs import started
from tests.postgres_server import Server

SQL = Path(__file__).parents[2] / "docs" / "prune.sql"


@pytest.fixture
def catalog(shared_server: Server, request: pytest.FixtureRequest) -> Catalog:
    return connect(shared_server.new_database(request.node.name))


def prune(server: Server, database: str) -> None:
    server.psql("--set", "ON_ERROR_STOP=1", "--set", "days=90", "--file", str(SQL), database)


def rows(catalog: Catalog) -> list[tuple[int, FileState]]:
    return sorted((file.global_step, file.state) for file in catalog.files("run") if file.rank == 0)


def test_old_rows_of_files_that_are_gone_are_forgotten(shared_server: Server, catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = started(catalog, tmp_path / "ckpt", 5, 10, 15, 20, 25, 30)
    catalog.pin("run", 5)
    for launch in ranks:  # a pinned file may be lost, too
        job.write(launch, 5).unlink()
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)))
    catalog.purge("run", now=True)
    gone = FileState.MISSING
    before = [(5, gone), (10, gone), (15, gone), (20, gone), (25, FileState.COMPLETE), (30, FileState.COMPLETE)]
    catalog.verify("run")
    assert rows(catalog) == before
    name = str(catalog.database.url.database)
    prune(shared_server, name)
    assert rows(catalog) == before  # they are of today
    shared_server.run("UPDATE saves SET created_at = created_at - interval '100 days' WHERE global_step <> 20", name)
    prune(shared_server, name)
    kept = [(5, gone), (20, gone), (25, FileState.COMPLETE), (30, FileState.COMPLETE)]
    assert rows(catalog) == kept
    assert shared_server.run("SELECT global_step FROM saves ORDER BY global_step", name) == [(5,), (20,), (25,), (30,)]
    catalog.sync("run")  # the journals have what was forgotten, and were read long ago
    assert catalog.resolve("run").plan.global_step == 30
    assert rows(catalog) == kept


def test_a_run_of_which_nothing_is_left_stays_on_record(
    shared_server: Server, catalog: Catalog, tmp_path: Path
) -> None:
    job, ranks = started(catalog, tmp_path / "ckpt")
    for step in (5, 10):
        for file in job.save(ranks, step):
            Path(file.path).unlink()
    catalog.verify("run")
    name = str(catalog.database.url.database)
    shared_server.run("UPDATE saves SET created_at = created_at - interval '100 days'", name)
    prune(shared_server, name)
    assert rows(catalog) == [(5, FileState.MISSING), (10, FileState.MISSING)]
    with pytest.raises(NothingRestorableError):
        job.start()
