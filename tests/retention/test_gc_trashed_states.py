"""Records of files that retention has given up: undo alone makes them whole, or another file there."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import reads
from ckptstore.catalog.project import project
from ckptstore.core.events import FilesRemoved, RemovedFile, StepPinned
from ckptstore.core.model import Location
from ckptstore.errors import NothingRestorableError, RefusedError
from ckptstore.retention.execute import Collected, execute
from ckptstore.retention.in_trash import purge, undo
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.conftest import new_postgres_database
from tests.jobs import begun
from tests.projecting import put, put_files
from tests.retention.builders import LAST_2, gc, names
from tests.trash_calls import at

TO_40 = (10, 20, 30, 40)
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


def states(catalog: Catalog, step: int) -> list[str]:
    return [file.state.value for file in catalog.show("run", step)]


def another(path: Path) -> Path:
    """A file with other content at a path where there may be one."""
    path.unlink(missing_ok=True)
    return ckpt_bytes.write(path, 10, weight=2.0)


def gc_while(catalog: Catalog, act: Callable[[], object]) -> Collected:
    plan = plan_gc(catalog.database, "run", LAST_2)
    with at(1, ("rename",), act):
        return execute(catalog.database, plan)


def test_what_is_registered_again_while_gc_takes_it_is_gcs(catalog: Catalog, tmp_path: Path) -> None:
    """A file that was touched since it was recorded has another time than its record, and the one that gc saw."""
    job, ranks = begun(catalog, tmp_path / "data", *TO_40)
    os.utime(job.folder(0) / "net-2_10.ckpt", ns=(1, 1))

    def again() -> None:
        for launch in ranks:
            path = job.folder(launch.rank) / "net-2_10.ckpt"
            launch.register(path, global_step=20, optimizer_step=20)
        assert states(catalog, 20) == ["trashed", "trashed"]
        with pytest.raises(RefusedError, match="gc has removed step 20 .*ckptstore undo run"):
            catalog.pin("run", 20)
        with pytest.raises(NothingRestorableError):
            job.start(resume=False)[0].resolve(step=20)

    assert gc_while(catalog, again).removed == (("L1", 10), ("L1", 20))
    catalog.sync("run")
    assert states(catalog, 20) == ["trashed", "trashed"]
    assert undo(catalog.database, "run").files == 4
    assert states(catalog, 20) == ["complete", "complete"]
    assert len(names(job.directory)) == 8


def test_a_file_that_is_registered_while_gc_records_that_it_goes(postgres: str, tmp_path: Path) -> None:
    """Where several write at once the record waits for gc's transaction, and must see what that one wrote."""
    url = new_postgres_database(postgres)
    catalog, gcs = connect(url), connect(url)
    begun(catalog, tmp_path / "data", *TO_40)
    files = catalog.show("run", 10)
    with catalog.database.read() as connection:
        versions = reads.versions_of(connection, [file.id for file in files])
    now = datetime.now(timezone.utc)
    removed = [
        FilesRemoved(
            "run",
            "gc",
            file.path.rpartition("/")[0],
            Location.TRASH,
            settled=False,
            at=now,
            files=(RemovedFile(file.path.rpartition("/")[2], file.size or 0, 1, file.id, versions[file.id]),),
        )
        for file in files
    ]

    def register() -> None:
        put_files(catalog, [replace(file, metrics={"loss": 1.0}) for file in files])

    registering = threading.Thread(target=register)
    with gcs.database.write() as connection:
        project(connection, removed)
        registering.start()
        while not connection.exec_driver_sql(WAITING).scalar():
            assert registering.is_alive()
    registering.join()
    assert states(catalog, 10) == ["trashed", "trashed"]


def test_what_goes_with_a_pinned_file_stays_with_it(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "data", *TO_40)
    for launch in ranks:
        path = another(job.directory / f"exit_{launch.rank}" / "net_train-step_5.ckpt")
        path.with_suffix(".mindir").write_bytes(b"graph")
        launch.register(path, kind="graceful_exit", global_step=5)
    assert gc(catalog).files == 8
    put(catalog, [StepPinned("run", 5, pinned=True, at=datetime.now(timezone.utc))])
    assert purge(catalog.database, "run", at_once=True).files == 4
    undo(catalog.database, "run")
    assert {name for name in names(job.directory) if name.endswith(".mindir")} == {
        "exit_0/net_train-step_5.mindir",
        "exit_1/net_train-step_5.mindir",
    }


@pytest.mark.of_files
def test_the_trash_stays_while_nothing_else_can_be_restored(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk spoils what gc kept: the trash is all that is left, and its grace is over."""
    job, _ = begun(catalog, tmp_path / "data", *TO_40)
    gc(catalog)
    for name in ("net-3_10.ckpt", "net-4_10.ckpt"):
        os.truncate(job.folder(1) / name, 20)
    later = datetime.now(timezone.utc) + timedelta(days=2)
    monkeypatch.setattr("ckptstore.retention.execute.utc_now", lambda: later)
    assert gc(catalog).purged_files == 0
    assert purge(catalog.database, "run", now=later).waiting == 4
    assert "nothing of run run can be restored, so its trash stays; ckptstore undo run" in caplog.text
    with pytest.raises(NothingRestorableError) as lost:
        job.start()
    assert "; ckptstore undo run brings back what gc moved to the trash, or start over: " in lost.value.hint
    undo(catalog.database, "run")
    resolution = catalog.resolve("run")
    assert resolution.plan.global_step == 20
    gc(catalog, Policy(keep_last=1, floor=1))
    assert purge(catalog.database, "run", now=later + timedelta(days=2)).files == 2


@pytest.mark.of_files
def test_metrics_that_come_late_do_not_bring_a_file_back(catalog: Catalog, tmp_path: Path) -> None:
    """Before, the state in the trash counted as complete, and could be pinned, until the next gc or start."""
    _, ranks = begun(catalog, tmp_path / "data", *TO_40)
    gc(catalog)
    ranks[0].record(step=20, accuracy=0.9)
    assert states(catalog, 20) == ["trashed", "trashed"]
    with pytest.raises(RefusedError, match="gc has removed step 20"):
        catalog.pin("run", 20)
    assert catalog.undo("run").files == 4
    assert [dict(file.metrics) for file in catalog.show("run", 20)] == [{"accuracy": 0.9}, {}]
    assert states(catalog, 20) == ["complete", "complete"]
