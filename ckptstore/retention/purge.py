"""Deletes what is in the trash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog.runs import find_run
from ckptstore.core.limits import CLOCKS_DIFFER
from ckptstore.outside import utc_now
from ckptstore.retention.worker import at_work

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Skipped


@dataclass(frozen=True)
class Purged:
    """What purge deleted, what stays in the trash until its grace ends or its mark goes, and what could not go."""

    run: str
    files: int
    bytes: int
    waiting: int
    waiting_bytes: int
    next_at: datetime | None  # when the next grace ends
    troubles: tuple[Skipped, ...]


def purge(
    database: Database,
    run: str,
    *,
    at_once: bool = False,
    now: datetime | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Purged:
    """Delete what has been in the trash of a run for longer than its grace, or all of it `at_once`. Can be repeated.

    Files of a step that is pinned or tagged by now stay. Raises `RefusedError` if a journal of the run cannot be read,
    which may tell of pins, and while another process works on the run's files.
    """
    run_id = find_run(database, run)
    with at_work(database, run, run_id, progress=progress) as worker:
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
        ends = {each.id: each.purge_after for each in worker.collections()}
        due = [ends[item.collection] for item in unmarked if item.collection in ends]
    return Purged(
        run=run,
        files=worker.done.purged["files"],
        bytes=worker.done.purged["bytes"],
        waiting=len(unmarked) + len(marked),
        waiting_bytes=sum(item.size for item in (*unmarked, *marked)),
        next_at=min(due) + CLOCKS_DIFFER if due else None,
        troubles=tuple(worker.done.troubles),
    )
