"""Carry out what was recorded of files that retention gave up; bring them back; purge them.

Each file goes through phases: what will be done with it is in the catalog before it is done, and that it is done after.
Whoever comes after a crash does what was recorded again, and ends where it would have ended.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import trash as rows
from ckptstore.catalog.trash import Item, Phase
from ckptstore.errors import RefusedError, UsageError
from ckptstore.ops.gc_lock import GcLock
from ckptstore.ops.runs import find_run
from ckptstore.storage.files import FileFacts
from ckptstore.storage.trash import Disk, Outcome, Trash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.trash import Collection

PORTION = 1000
"""How many files are done between two records of it in the catalog."""

_STAYS = {
    Outcome.OCCUPIED: "another file is at its place now: it stays in the trash",
    Outcome.CHANGED: "another file is in the trash in its stead: it stays there, and undo brings it back",
}
_GOING = (Phase.MOVING, Phase.DELETING)


def _nobody(_: int) -> None:
    """Hears of progress, and does nothing."""


@dataclass(frozen=True)
class Trouble:
    """A file that nothing could be done with now, and why. The next gc, undo or purge tries again."""

    path: str
    reason: str


@dataclass
class Done:
    """What became of files: how many ended how, by phase and outcome, their bytes, and what could not be done."""

    files: Counter[tuple[Phase, Outcome]] = field(default_factory=Counter)
    bytes: Counter[tuple[Phase, Outcome]] = field(default_factory=Counter)
    troubles: list[Trouble] = field(default_factory=list)

    def count(self, *phases: Phase) -> int:
        """How many files were brought through one of these phases."""
        return sum(number for (phase, outcome), number in self.files.items() if phase in phases and _is_done(outcome))

    def size(self, *phases: Phase) -> int:
        """Their bytes."""
        return sum(number for (phase, outcome), number in self.bytes.items() if phase in phases and _is_done(outcome))


def _is_done(outcome: Outcome) -> bool:
    return outcome in (Outcome.DONE, Outcome.GONE)


class Worker:
    """Does to files what their phase says, under the lock of their run, and records it."""

    def __init__(
        self, database: Database, lock: GcLock, *, disk: Disk | None = None, progress: Callable[[int], None] = _nobody
    ) -> None:
        self._database = database
        self._lock = lock
        self._disk = disk or Disk()
        self._progress = progress
        self.done = Done()
        self.filled: set[str] = set()

    def finish_what_was_begun(self) -> dict[str, Collection]:
        """Do again what a process that died, or was refused something, had recorded; but remove nothing on its word.

        What was to go and is still at its place is given back: since it was recorded the run may have come to need it.
        Returns of which gc each of those was, by path: a new look decides whether it goes.
        """
        with self._database.read() as connection:
            gcs = {each.id: each for each in rows.collections_of(connection, self._lock.run_id)}
            going = rows.items_of(connection, self._lock.run_id, *_GOING)
            others = rows.items_of(connection, self._lock.run_id, Phase.RESTORING, Phase.PURGING)
        self._portions([replace(item, phase=Phase.MOVING) for item in going], _halt)
        self.carry_out(others)
        return {item.path: gcs[item.collection] for item in going}

    def carry_out(self, items: Sequence[Item]) -> None:
        """Do what the phase of each of these says, and record what came of it."""
        self._portions(items, _do)

    def _portions(self, items: Sequence[Item], act: Callable[[Trash, Item], Outcome]) -> None:
        for start in range(0, len(items), PORTION):
            some = items[start : start + PORTION]
            try:
                self._record(list(self._act(some, act)))
            except RefusedError:
                self._put_back(some)
                raise

    def _record(self, outcomes: Sequence[tuple[Item, Outcome]]) -> None:
        with self._database.write() as connection:
            self._lock.renew(connection)
            moved = [item for item, outcome in outcomes if _ends_in_trash(item, outcome)]
            rows.set_phase(connection, moved, Phase.TRASHED)
            self.filled.update(item.collection for item in moved if item.phase is Phase.MOVING)
            over = [(item, outcome) for item, outcome in outcomes if not _ends_in_trash(item, outcome)]
            back = [item for item, outcome in over if _is_where_it_was(item, outcome)]
            rows.drop(connection, back, restored=True)
            kept = {item.id for item in back}
            rows.drop(connection, [item for item, _ in over if item.id not in kept], restored=False)
            rows.drop_empty(connection, self._lock.run_id)

    def begin(self, items: Sequence[Item], phase: Phase) -> list[Item]:
        """Record what is done with these next."""
        with self._database.write() as connection:
            self._lock.renew(connection)
            rows.set_phase(connection, items, phase)
            return rows.items_of(connection, self._lock.run_id, phase)

    def purge_due(self, now: datetime) -> None:
        """Delete what has been in the trash for longer than its grace."""
        with self._database.read() as connection:
            every = rows.collections_of(connection, self._lock.run_id)
            due = {collection.id for collection in every if collection.purge_after <= now}
            items = [
                item for item in rows.items_of(connection, self._lock.run_id, Phase.TRASHED) if item.collection in due
            ]
        if items:
            self.carry_out(self.begin(items, Phase.PURGING))

    def _act(self, items: Sequence[Item], act: Callable[[Trash, Item], Outcome]) -> Iterator[tuple[Item, Outcome]]:
        by_collection: dict[str, list[Item]] = {}
        for item in items:
            by_collection.setdefault(item.collection, []).append(item)
        for collection, own in by_collection.items():
            with ExitStack() as stack:
                trash = stack.enter_context(Trash(collection, self._disk))
                acted = [(item, outcome) for item in own if (outcome := self._try(trash, item, act)) is not None]
                self._tidy(trash, acted)
            yield from acted

    def _try(self, trash: Trash, item: Item, act: Callable[[Trash, Item], Outcome]) -> Outcome | None:
        self._lock.keep()
        try:
            outcome = act(trash, item)
        except OSError as error:
            self.done.troubles.append(Trouble(item.path, error.strerror or str(error)))
            return None
        self.done.files[item.phase, outcome] += 1
        self.done.bytes[item.phase, outcome] += item.size
        reason = _STAYS.get(outcome)
        if reason is not None and _ends_in_trash(item, outcome):
            self.done.troubles.append(Trouble(item.path, reason))
        self._progress(1)
        return outcome

    def _put_back(self, items: Sequence[Item]) -> None:
        """The lock was lost: what came into the trash after its new holder had brought all back goes back too."""
        with self._database.read() as connection:
            known = {item.id for item in rows.items_of(connection, self._lock.run_id, *Phase)}
        for item in items:
            if item.phase is Phase.MOVING and item.id not in known:
                with suppress(OSError), Trash(item.collection, self._disk) as trash:
                    trash.take_back(item.root, item.place, FileFacts(item.size, item.mtime_ns))
                    trash.sweep(item.root, [item.place])

    def _tidy(self, trash: Trash, acted: Sequence[tuple[Item, Outcome]]) -> None:
        """Remove the directories that are empty now: those of TTP, and those of the trash."""
        places: dict[tuple[str, bool], list[str]] = {}
        for item, _ in acted:
            is_leaving = item.phase in _GOING
            if "/" in item.place or not is_leaving:
                places.setdefault((item.root, is_leaving), []).append(item.place)
        for (root, is_leaving), some in places.items():
            self._remove_empty(trash, root, some, is_leaving=is_leaving)

    def _remove_empty(self, trash: Trash, root: str, places: Sequence[str], *, is_leaving: bool) -> None:
        try:
            if is_leaving:
                trash.remove_empty(root, places)
            else:
                trash.sweep(root, places)
        except OSError as error:
            self.done.troubles.append(Trouble(root, error.strerror or str(error)))


def _do(trash: Trash, item: Item) -> Outcome:
    expected = FileFacts(item.size, item.mtime_ns)
    match item.phase:
        case Phase.MOVING:
            return trash.put(item.root, item.place, expected)
        case Phase.RESTORING:
            return trash.take_back(item.root, item.place, expected)
        case Phase.DELETING:
            return trash.delete(item.root, item.place, expected)
        case _:
            return trash.purge(item.root, item.place, expected)


def _halt(trash: Trash, item: Item) -> Outcome:
    """What became of a file that was to go when its gc ended before its time."""
    return trash.halt(item.root, item.place, FileFacts(item.size, item.mtime_ns))


def _ends_in_trash(item: Item, outcome: Outcome) -> bool:
    moved, kept = (Phase.MOVING, Outcome.DONE), (Phase.PURGING, Outcome.CHANGED)
    return (item.phase, outcome) in (moved, kept) or outcome is Outcome.OCCUPIED


def _is_where_it_was(item: Item, outcome: Outcome) -> bool:
    """Whether a file is what and where it was: brought back, or another one by the time it was to go."""
    return outcome is Outcome.CHANGED or (item.phase is Phase.RESTORING and outcome is Outcome.DONE)


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
    troubles: tuple[Trouble, ...]
    passed_over: tuple[datetime, ...] = ()


@dataclass(frozen=True)
class Purged:
    """What purge deleted, what waits for its grace to end and until when, and what could not be deleted."""

    run: str
    files: int
    bytes: int
    waiting: int
    waiting_bytes: int
    next_at: datetime | None
    troubles: tuple[Trouble, ...]


def undo(
    database: Database, run: str, *, progress: Callable[[int], None] = _nobody, disk: Disk | None = None
) -> Undone:
    """Bring back what the last gc of a run moved to the trash, and what it had not come to. Can be repeated.

    Of one that was interrupted with `--now`, or of a purge that was, that is what is still there.
    The last of which something comes back: one of which nothing can now, since other files are in the way or its disk
    is away, keeps nobody from the gc before. Once more brings back the gc before. Raises `UsageError` where nothing is
    in the trash, `RefusedError` while another process works on the run's files.
    """
    run_id = find_run(database, run)
    passed_over: list[datetime] = []
    with GcLock(database, run, run_id) as lock:
        worker = Worker(database, lock, disk=disk, progress=progress)
        tried: set[int] = set()
        every = _in_trash(database, run, run_id)
        for chosen in every:
            _bring_back(database, worker, run_id, chosen, tried)
            if worker.done.files[Phase.RESTORING, Outcome.DONE]:
                break
            passed_over.append(chosen.created_at)
    done = worker.done
    back = done.files[Phase.RESTORING, Outcome.DONE]
    return Undone(
        run=run,
        collection=chosen.id if back else every[0].id,
        files=back,
        bytes=done.bytes[Phase.RESTORING, Outcome.DONE],
        gone=done.files[Phase.RESTORING, Outcome.GONE],
        troubles=tuple(done.troubles),
        passed_over=tuple(passed_over) if back else (),
    )


def _in_trash(database: Database, run: str, run_id: int) -> list[Collection]:
    """The gcs of a run of which something can be in the trash, or be at its place still, newest first."""
    with database.read() as connection:
        there = {item.collection for item in rows.items_of(connection, run_id, *Phase)}
        found = [each for each in rows.collections_of(connection, run_id) if each.id in there]
    if not found:
        raise UsageError(f"nothing of run {run!r} is in the trash", "gc --now and purge leave nothing in it")
    return found


def _bring_back(database: Database, worker: Worker, run_id: int, collection: Collection, tried: set[int]) -> None:
    """Bring back what is in the trash of one gc, and what an undo that was interrupted had begun with."""
    with database.write() as connection:
        items = rows.items_of(connection, run_id, *Phase, collection=collection.id)
        rows.end(connection, collection.id)
    begun = [item for item in worker.begin(items, Phase.RESTORING) if item.id not in tried]
    tried.update(item.id for item in begun)
    worker.carry_out(begun)


def purge(
    database: Database,
    run: str,
    *,
    at_once: bool = False,
    now: datetime | None = None,
    progress: Callable[[int], None] = _nobody,
    disk: Disk | None = None,
) -> Purged:
    """Delete what has been in the trash of a run for longer than its grace, or all of it `at_once`. Can be repeated."""
    run_id = find_run(database, run)
    with GcLock(database, run, run_id) as lock:
        worker = Worker(database, lock, disk=disk, progress=progress)
        worker.finish_what_was_begun()
        worker.purge_due(datetime.max.replace(tzinfo=timezone.utc) if at_once else now or datetime.now(timezone.utc))
        with database.read() as connection:
            left = rows.items_of(connection, run_id, Phase.TRASHED)
            ends = {each.id: each.purge_after for each in rows.collections_of(connection, run_id)}
    return Purged(
        run=run,
        files=worker.done.count(Phase.PURGING),
        bytes=worker.done.size(Phase.PURGING),
        waiting=len(left),
        waiting_bytes=sum(item.size for item in left),
        next_at=min((ends[item.collection] for item in left), default=None),
        troubles=tuple(worker.done.troubles),
    )
