"""Brings back what gc moved to the trash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog.runs import find_run
from ckptstore.core.model import Location
from ckptstore.errors import UsageError
from ckptstore.outside import utc_now
from ckptstore.retention.worker import at_work

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Skipped


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
        worker.bring_home(coming)  # an undo was interrupted
        tried = {item.id for item in coming}
        for chosen in gcs:
            worker.end([chosen], utc_now())
            items = [item for item in worker.items(collection=chosen.id) if item.id not in tried]
            worker.bring_home(worker.want(items, Location.HOME))
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
