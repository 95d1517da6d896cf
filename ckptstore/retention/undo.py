"""Brings back what gc moved to the trash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog.runs import find_run
from ckptstore.core.model import FileState, Location, Skipped
from ckptstore.errors import UsageError
from ckptstore.outside import utc_now
from ckptstore.resume.examine import Unseen, Whole, examine
from ckptstore.retention.worker import at_work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.removals import Item
    from ckptstore.retention.worker import Worker


@dataclass(frozen=True)
class Undone:
    """What undo brought back, and what it could not."""

    run: str
    collection: str
    files: int
    bytes: int
    gone: int
    troubles: tuple[Skipped, ...]
    passed_over: tuple[datetime, ...] = ()  # the times of newer gcs of which nothing could come back


def undo(database: Database, run: str, *, progress: Callable[[int], None] = lambda _: None) -> Undone:
    """Bring back what the last gc of a run moved to the trash, and what it had not come to. Can be repeated.

    Once more brings back the gc before. So does the first call if nothing of the last gc can come back now: other files
    are in its place, or its disk is away. After an interrupted purge, or `gc --now`, what is still there comes back.
    Raises `UsageError` if nothing is in the trash, `RefusedError` while another process works on the run's files.
    """
    run_id = find_run(database, run)
    passed_over: list[datetime] = []
    with at_work(database, run, run_id, progress=progress) as worker:
        gcs = worker.collections()
        if not gcs:
            raise UsageError(f"nothing of run {run!r} is in the trash", "gc --now and purge leave nothing in it")
        coming = [item for item in worker.items(settled=False) if item.wanted is Location.HOME]
        _take_as_recorded(worker, worker.settle(coming))  # an undo was interrupted
        tried = {item.id for item in coming}
        for chosen in gcs:
            worker.end([chosen], utc_now())
            items = [item for item in worker.items(collection=chosen.id) if item.id not in tried]
            _take_as_recorded(worker, worker.settle(worker.want(items, Location.HOME)))
            if worker.done.restored:
                break
            passed_over.append(chosen.created_at)
    restored = worker.done.restored
    return Undone(
        run=run,
        collection=chosen.id if restored else gcs[0].id,
        files=restored["files"],
        bytes=restored["bytes"],
        gone=worker.done.lost,
        troubles=tuple(worker.done.troubles),
        passed_over=tuple(passed_over) if restored else (),
    )


def _take_as_recorded(worker: Worker, items: Sequence[Item]) -> None:
    """Count a file that came back with the recorded bytes though its record says that it is gone.

    Of two files of one record that were removed after each other the record is of the later one, which was purged. And
    a copy may be at the place of one that stays in the trash.
    """
    with worker.database.read() as connection:
        records = reads.files_by_id(connection, [item.checkpoint for item in items if item.checkpoint])
    gone = [file for file in records.values() if file.state in (FileState.MISSING, FileState.TRASHED)]
    seen = [examine(file, read_bytes=True, progress=lambda _: worker.lock.keep()) for file in gone]
    whole = [(each.file, each.after) for each in seen if isinstance(each, Whole)]
    if whole:
        worker.recorder.amend(whole)
    unseen = {each.file.id: each.reason for each in seen if isinstance(each, Unseen)}
    left = [item for item in items if item.checkpoint in unseen]
    if left:
        worker.done.troubles += [Skipped(item.path, unseen[item.checkpoint]) for item in left]
        worker.want(left, Location.HOME)  # the next undo looks again
