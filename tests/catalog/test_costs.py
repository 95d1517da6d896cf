"""What a transaction costs does not grow with what it has nothing to do with: counted in instructions of SQLite."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from ckptstore.catalog import directories
from ckptstore.catalog.engine import Connection, in_memory
from ckptstore.catalog.project import project
from ckptstore.core.events import FileRecorded, FilesRemoved, LaunchStarted, RemovedFile
from ckptstore.core.model import Checkpoint, FileState, Kind, Launch, Location
from ckptstore.core.replicas import stand_alone

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
HOUR_NS = 3600 * 10**9
EACH = 100  # instructions

Cost = Callable[[Connection, list[Checkpoint]], object]


def removed(connection: Connection, files: list[Checkpoint]) -> None:
    gone = tuple(RemovedFile(str(file.global_step), 1, 0, file.id, "") for file in files)
    project(connection, [FilesRemoved("run", "gc", "/d", Location.GONE, settled=True, at=START, files=gone)])


def instructions(work: Cost, others: int) -> int:
    """What SQLite does, in hundreds, of the newest file where so many others are gone, and were written before."""
    launch = Launch(id="L1", run="run", order=0, world_size=1, layout=stand_alone(), created_at=START)
    files = [
        Checkpoint(run="run", launch="L1", kind=Kind.PERIODIC, global_step=step, rank=0, path=f"/d/{step}", size=1)
        for step in range(others + 1)
    ]
    files = [
        replace(file, created_at=START, mtime_ns=step * HOUR_NS, state=FileState.COMPLETE)
        for step, file in enumerate(files)
    ]
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    with in_memory().write() as connection:
        project(connection, [LaunchStarted(launch), *map(FileRecorded, files)])
        removed(connection, files[: others // 2])
        driver: Any = connection.connection.dbapi_connection
        driver.set_progress_handler(count, EACH)
        work(connection, files[-1:])
        driver.set_progress_handler(None, 0)
    return counted


def written_at_once(connection: Connection, files: list[Checkpoint]) -> None:
    """What else was written when a file was: gc looks for other paths of what goes, of whatever run."""
    moment = files[0].mtime_ns or 0
    assert len(list(directories.written_within(connection, moment, moment + 1))) == 1


@pytest.mark.parametrize("work", [removed, written_at_once])
def test_it_does_not_grow_with_what_others_did(work: Cost) -> None:
    """Of two indexes SQLite took that of the run for the quicker one, and read all that the run had lost."""
    assert instructions(work, 1000) <= instructions(work, 20) + 2
