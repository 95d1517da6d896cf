"""Bring back what retention moved to the trash; purge it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog.project import OPEN_PHASES
from ckptstore.catalog.runs import find_run
from ckptstore.core.model import FileState, Phase, Skipped
from ckptstore.disk.trash import TrashResult
from ckptstore.errors import UsageError
from ckptstore.outside import utc_now
from ckptstore.resume.examine import Whole, examine
from ckptstore.resume.lease import CLOCKS_DIFFER
from ckptstore.retention.worker import at_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.trash import Collection, Item
    from ckptstore.disk.trash import Disk
    from ckptstore.retention.worker import Worker


@dataclass(frozen=True)
class Undone:
    """What undo brought back, and what it could not.

    `passed_over` are the times of the newer gcs of which nothing could be brought back: `troubles` say why.
    """

    run: str
    collection: str
    files: int
    bytes: int
    gone: int
    troubles: tuple[Skipped, ...]
    passed_over: tuple[datetime, ...] = ()


@dataclass(frozen=True)
class Purged:
    """What purge deleted, what waits for its grace to end and until when, and what could not be deleted.

    What is of a step that is pinned or tagged waits too, until that is taken away.
    """

    run: str
    files: int
    bytes: int
    waiting: int
    waiting_bytes: int
    next_at: datetime | None
    troubles: tuple[Skipped, ...]


def undo(
    database: Database, run: str, *, progress: Callable[[int], None] = lambda _: None, disk: Disk | None = None
) -> Undone:
    """Bring back what the last gc of a run moved to the trash, and what it had not come to. Can be repeated.

    Of one that was interrupted with `--now`, or of a purge that was, that is what is still there.
    The last of which something comes back: one of which nothing can now, since other files are in the way or its disk
    is away, keeps nobody from the gc before. Once more brings back the gc before. Raises `UsageError` where nothing is
    in the trash, `RefusedError` while another process works on the run's files.
    """
    run_id = find_run(database, run)
    passed_over: list[datetime] = []
    with at_work(database, run, run_id, disk=disk, progress=progress) as worker:
        tried: set[str] = set()
        every = worker.collections()
        if not every:
            raise UsageError(f"nothing of run {run!r} is in the trash", "gc --now and purge leave nothing in it")
        for chosen in every:
            items = worker.items(*OPEN_PHASES, collection=chosen.id)
            _end(worker, [chosen], {item.root for item in items}, utc_now())
            begun = [item for item in worker.begin(items, Phase.RESTORING) if item.id not in tried]
            tried.update(item.id for item in begun)
            worker.carry_out(begun)
            _take_as_recorded(worker, begun)
            if worker.done.files[Phase.RESTORING, TrashResult.DONE]:
                break
            passed_over.append(chosen.created_at)
    done = worker.done
    back = done.files[Phase.RESTORING, TrashResult.DONE]
    return Undone(
        run=run,
        collection=chosen.id if back else every[0].id,
        files=back,
        bytes=done.bytes[Phase.RESTORING, TrashResult.DONE],
        gone=done.files[Phase.RESTORING, TrashResult.GONE],
        troubles=tuple(done.troubles),
        passed_over=tuple(passed_over) if back else (),
    )


def _take_as_recorded(worker: Worker, items: Sequence[Item]) -> None:
    """Count what came back whose record is still of a file that is gone, if it has the recorded bytes.

    Of two files of one record that were given up after each other the record is of the later one, which was purged. And
    a copy may be at the place of one that stays in the trash.
    """
    with worker.database.read() as connection:
        records = reads.files_by_id(connection, [item.checkpoint for item in items if item.checkpoint])
    gone = [file for file in records.values() if file.state in (FileState.MISSING, FileState.TRASHED)]
    seen = [examine(file, read_bytes=True, progress=lambda _: worker.lock.keep()) for file in gone]
    whole = [(each.file, each.after) for each in seen if isinstance(each, Whole)]
    if whole:
        worker.recorder.amend(whole)


def _end(worker: Worker, collections: Iterable[Collection], directories: Iterable[str], now: datetime) -> None:
    """Nothing is added to these any more; of one that was interrupted the grace begins. Told in the directories."""
    interrupted = [each for each in collections if not each.ended]
    ended = [each.told(worker.lock.run, ended=True, purge_after=each.graced_from(now)) for each in interrupted]
    worker.record(lambda _: ended, directories)


def purge(
    database: Database,
    run: str,
    *,
    at_once: bool = False,
    now: datetime | None = None,
    progress: Callable[[int], None] = lambda _: None,
    disk: Disk | None = None,
) -> Purged:
    """Delete what has been in the trash of a run for longer than its grace, or all of it `at_once`. Can be repeated.

    What is of a step that is pinned or tagged by now stays, as the run's journals tell too. Raises `RefusedError` where
    one of those cannot be read, and while another process works on the run's files.
    """
    run_id = find_run(database, run)
    with at_work(database, run, run_id, disk=disk, progress=progress) as worker:
        worker.refuse_unless_all_is_read()
        worker.finish_what_was_begun()
        now = now or utc_now()
        every = worker.collections()
        _end(worker, every, {item.root for item in worker.items(*OPEN_PHASES)}, now)
        if at_once:
            worker.purge({each.id for each in every})
        else:
            worker.purge_due(now)
        unmarked, marked = worker.in_trash_by_mark()
        ends = {each.id: each.purge_after for each in worker.collections()}
        due = [ends[item.collection] for item in unmarked if item.collection in ends]
    return Purged(
        run=run,
        files=worker.done.count(Phase.PURGING),
        bytes=worker.done.size(Phase.PURGING),
        waiting=len(unmarked) + len(marked),
        waiting_bytes=sum(item.size for item in (*unmarked, *marked)),
        next_at=min(due) + CLOCKS_DIFFER if due else None,
        troubles=tuple(worker.done.troubles),
    )
