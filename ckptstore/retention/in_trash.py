"""Restores files that gc moved to the trash, or deletes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """The files that undo restored, and those that it could not."""

    run: str
    collection: str
    files: int
    bytes: int
    gone: int
    troubles: tuple[Skipped, ...]
    passed_over: tuple[datetime, ...] = ()  # the times of newer gcs of which no file could be restored


def undo(database: Database, run: str, *, progress: Callable[[int], None] = lambda _: None) -> Undone:
    """Undo the last gc of a run: restore the files in the trash, and cancel removals not done yet. Can be repeated.

    The next call undoes the gc before. So does the first call if no file of the last gc can be restored now: other
    files are in their place, or the disk is unmounted. After an interrupted purge, or `gc --now`, the remaining files
    are restored. Raises `UsageError` if the trash is empty, `RefusedError` while another process works on the run's
    files.
    """
    passed_over: list[datetime] = []
    with at_work(database, run, progress=progress) as worker:
        gcs = worker.collections()
        if not gcs:
            raise UsageError(f"nothing of run {run!r} is in the trash", "gc --now and purge leave nothing in it")
        coming = [item for item in worker.items(settled=False) if item.wanted is Location.HOME]
        worker.bring_home(coming)  # of an interrupted undo
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


@dataclass(frozen=True)
class Purged:
    """The files that purge deleted, those that stay until their grace or mark ends, and those that failed."""

    run: str
    files: int
    bytes: int
    waiting: int
    waiting_bytes: int
    next_at: datetime | None  # when purge deletes the next of them
    troubles: tuple[Skipped, ...]
    is_marked: bool  # a pin or tag is why some of them stay


def purge(
    database: Database,
    run: str,
    *,
    at_once: bool = False,
    now: datetime | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Purged:
    """Delete the trash of a run that is older than its grace, or all of it `at_once`. Can be repeated.

    Files of a step that is pinned or tagged by now stay. Raises `RefusedError` if a journal of the run cannot be read,
    since it may record pins, and while another process works on the run's files.
    """
    with at_work(database, run, progress=progress) as worker:
        worker.refuse_unless_all_is_read()
        worker.recover()
        now = now or utc_now()
        gcs = worker.collections()
        worker.end(gcs, now)
        if at_once:
            worker.purge({each.id for each in gcs})
        else:
            worker.purge_due(now)
        unmarked, marked = worker.in_trash_by_mark()
        ends = {each.id: each.purged_from for each in worker.collections()}
        due = [ends[item.collection] for item in unmarked if ends.get(item.collection, now) > now]
    return Purged(
        run=run,
        files=worker.done.purged["files"],
        bytes=worker.done.purged["bytes"],
        waiting=len(unmarked) + len(marked),
        waiting_bytes=sum(item.size for item in (*unmarked, *marked)),
        next_at=min(due, default=None),
        troubles=tuple(worker.done.troubles),
        is_marked=bool(marked) and not worker.away,
    )
