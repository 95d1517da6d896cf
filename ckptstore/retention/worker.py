"""Moves the files of a run to the trash, back, or deletes them: one process at a time, only in present directories.

The wanted place of a file is recorded before the move, and the outcome after it. So files that a crash left on the way
are settled like any others.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, removals, user_events
from ckptstore.catalog.copies import ready_copies
from ckptstore.catalog.engine import clock
from ckptstore.catalog.runs import find_called
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.model import FileState, Location, Skipped
from ckptstore.disk import presence
from ckptstore.disk.files import FileFacts
from ckptstore.disk.owner import is_dead, is_this_process, shown, this_process
from ckptstore.disk.presence import Home
from ckptstore.disk.trash import Trash
from ckptstore.errors import CatalogUnavailableError, RefusedError, reason_of
from ckptstore.journal.recorder import homes, homes_of_trash, shared
from ckptstore.journal.sync import sync_run, unheard_states, why_unheard
from ckptstore.outside import time
from ckptstore.resume.examine import Unseen, Whole, examine
from ckptstore.resume.resolve import choose
from ckptstore.resume.resolver import Query
from ckptstore.retention.authority import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime
    from types import TracebackType

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.removals import Collection, Item
    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint, LaunchKey
    from ckptstore.disk.trash import Settled
    from ckptstore.journal.jsonl import JournalWriter

log = logging.getLogger("ckptstore")

PORTION = 1000
"""The number of files moved between two records in the catalog."""


@dataclass
class Done:
    """The numbers of moved files and their bytes by the kind of move; the files that failed, and why."""

    trashed: Counter[str] = field(default_factory=Counter)
    deleted: Counter[str] = field(default_factory=Counter)  # from their place
    purged: Counter[str] = field(default_factory=Counter)  # from the trash
    restored: Counter[str] = field(default_factory=Counter)
    lost: int = 0  # files to restore that are gone
    troubles: list[Skipped] = field(default_factory=list)  # the next gc, undo or purge tries again

    def add(self, item: Item, settled: Settled, *, takes: bool) -> None:
        """Count the outcome of a file."""
        if settled.at is not item.wanted:
            self.lost += item.wanted is Location.HOME and settled.at is Location.GONE
            if settled.at is Location.TRASH:
                self.troubles.append(Skipped(item.path, settled.reason))
        elif not settled.reason:
            counts = {
                Location.TRASH: self.trashed,
                Location.GONE: self.deleted if takes else self.purged,
                Location.HOME: self.restored,
            }[settled.at]
            counts.update(files=1, bytes=item.size)


class Worker:
    """Moves files under the lock of their run, and records the moves.

    A directory that is not present is skipped: it may be an empty mount point. Raises `RefusedError` if the lock was
    lost: files moved since it was last held go back, and nothing more is done.
    """

    def __init__(self, database: Database, lock: GcLock, *, progress: Callable[[int], None]) -> None:
        self.database = database
        self.lock = lock
        self._progress = progress
        self._reach = Reach(database, lock.run_id)
        self.recorder = shared(database, self._reach.homes)
        self.recorder.begun = _begun(database, lock.run_id)
        self.authority = Authority(database, lock.run, lock.run_id)
        self.done = Done()
        self.unheard = ""  # why some journals of the run were not read
        self.away: dict[str, str] = {}  # why those of some states were not read, by file id
        self.hear()

    def hear(self) -> None:
        """Sync the run's journals: they may have new pins, tags and launches."""
        synced = sync_run(self.database, self.lock.run_id)
        self.unheard = why_unheard(synced)
        self.away = {}
        if not synced.away:
            return
        with self.database.read() as connection:
            own = [item.checkpoint for item in removals.items_of(connection, self.lock.run_id)]
            files = reads.files_to_judge(connection, self.lock.run_id, [each for each in own if each])
            copied = ready_copies(connection, files)
        found = unheard_states(synced, files)
        # A file with a copy may go: the state is not lost, whatever the journals say that are not seen here.
        why = {file.id: found.get((file.launch, file.global_step), ()) for file in files if file.id not in copied}
        self.away = {id_: f"{some[0].path} {some[0].reason}" for id_, some in why.items() if some}

    def refuse_unless_all_is_read(self) -> None:
        """Raise `RefusedError` if a journal of the run could not be read: a deletion cannot be undone."""
        if self.unheard:
            told = f"nothing of run {self.lock.run!r} is deleted: {self.unheard}"
            raise RefusedError(told, "make that journal readable, update ckptstore here, or move it to a safe place")

    def collections(self) -> list[Collection]:
        """The gcs of the run that have files in the trash or on the way, newest first."""
        with self.database.read() as connection:
            return removals.collections_of(connection, self.lock.run_id)

    def items(self, *, settled: bool | None = None, collection: str | None = None) -> list[Item]:
        """The files of the run, or of one gc of it: those in the trash (`settled`), those on the way, or both."""
        with self.database.read() as connection:
            return removals.items_of(connection, self.lock.run_id, settled=settled, collection=collection)

    def record(self, decide: Callable[[Connection], Sequence[Event]], homes: Iterable[str] = ()) -> None:
        """Record the events that `decide` returns, if the lock is held; the journals of `homes` get them too."""

        def work(connection: Connection) -> tuple[Sequence[Event], tuple[LaunchKey, ...]]:
            self.lock.renew(connection)
            return decide(connection), ()

        for directory in homes:
            if not self._reach.absence(directory):
                self.recorder.home(directory)
        self.recorder.record_decided(work)

    def end(self, gcs: Iterable[Collection], now: datetime) -> None:
        """End these gcs: no more files go with them, and their grace begins."""
        begun = [each for each in gcs if not each.ended]
        ended = [each.told(self.lock.run, ended=True, purge_after=each.graced_from(now)) for each in begun]
        self.record(lambda _: ended, {item.root for each in begun for item in self.items(collection=each.id)})

    def recover(self) -> list[Collection]:
        """Finish the moves that a crashed or refused process had recorded. Returns the gcs that did not end.

        A file that is still at its place stays there: the run may need it by now.
        """
        gcs = self.collections()
        self.bring_home(self.items(settled=False))
        return [each for each in gcs if not each.ended]

    def want(self, items: Iterable[Item], wanted: Location) -> list[Item]:
        """Record the wanted place of these files. Files in an absent directory are left out and reported."""
        present: list[Item] = []
        for item in items:
            if reason := self._absence(item):
                self.done.troubles.append(Skipped(item.path, reason))
            else:
                present.append(item)
        present = removals.moved(present, wanted)
        self.record(lambda _: removals.told(present))
        return present

    def settle(self, items: Sequence[Item], *, takes: bool = False) -> list[Item]:
        """Move files to their wanted places, out of their home only if `takes`; return their new records."""
        settled: list[Item] = []
        for start in range(0, len(items), PORTION):
            some = items[start : start + PORTION]
            try:
                settled += self._record(self._settle(some, takes=takes))
            except RefusedError:
                self._put_back(some)
                raise
        return settled

    def bring_home(self, items: Sequence[Item]) -> None:
        """Settle files without moving any out of its home, or deleting any. Check those again that may be home.

        A file may be home though its record says gone: a rank missed it, another file at its path was purged, it was
        copied back out of the trash, or a power loss changed its times. It counts again if it has the recorded bytes.
        """
        coming = {item.id for item in items if item.wanted is Location.HOME}
        kept = {item.id: item for item in items if item.wanted is Location.GONE and _is_in_trash(item)}
        if kept:  # an interrupted purge: the next one judges anew whether the run may need them
            self.record(lambda _: removals.told(removals.moved(kept.values(), Location.TRASH, settled=True)))
        settled = self.settle([item for item in items if item.id not in kept])
        home = [item for item in settled if item.wanted is not Location.TRASH or item.id in coming]
        records = self._records(home)
        gone = {
            file.id: file
            for some in records.values()
            for file in some
            if file.state in (FileState.MISSING, FileState.TRASHED)
        }
        seen = [examine(file, read_bytes=True, progress=lambda _: self.lock.keep()) for file in gone.values()]
        whole = [(each.file, each.after) for each in seen if isinstance(each, Whole)]
        if whole:
            self.recorder.amend(whole)
        unseen = {each.file.id: each.reason for each in seen if isinstance(each, Unseen)}
        back = [item for item in home if item.wanted is Location.HOME]  # the others are in the trash, and may be purged
        why = {item.id: unseen[file.id] for item in back for file in records.get(item.id, ()) if file.id in unseen}
        left = [item for item in back if item.id in why]
        if left:
            self.done.troubles += [Skipped(item.path, why[item.id]) for item in left]
            self.want(left, Location.HOME)  # the next undo or gc looks again

    def _records(self, items: Sequence[Item]) -> dict[str, list[Checkpoint]]:
        """The records that these files may have at their paths, by the ids of the items.

        If the tree was moved, the trash refers to the records of the old path, and the records of the new path are
        marked missing. A file whose mtime changed since it was recorded is recognised by its digest.
        """
        told = [item for item in items if item.checkpoint]
        with self.database.read() as connection:
            by_id = reads.files_by_id(connection, [item.checkpoint for item in told])
            here = {item.id: by_id[item.checkpoint] for item in told if item.checkpoint in by_id}
            moved = [item for item in told if item.id not in here or here[item.id].path != item.path]
            at_paths = reads.files_at_paths(connection, [item.path for item in moved])
        found = {item_id: [file] for item_id, file in here.items()}
        for item in moved:
            found[item.id] = [
                file
                for file in at_paths.get(item.path, ())
                if (file.run, file.size, file.state) == (item.run, item.size, FileState.MISSING)
                and (file.digest or file.mtime_ns == item.mtime_ns)
            ]
        return found

    def _record(self, outcomes: Sequence[tuple[Item, Settled]]) -> list[Item]:
        ended: list[Item] = []
        for at in Location:
            ended += removals.moved((item for item, settled in outcomes if settled.at is at), at, settled=True)
        self.record(lambda _: removals.told(ended))
        return ended

    def purge_due(self, now: datetime) -> None:
        """Delete trash after its grace, which begins when its gc has ended, unless the run may need it."""
        due = {each.id for each in self.collections() if each.ended and each.purged_from <= now}
        if not self.may_need(due):
            self.purge(due)

    def may_need(self, gcs: AbstractSet[str]) -> bool:
        """Whether these gcs have checkpoints in the trash, and the run has no other state to go on from. Then warns."""
        has_any = any(item.checkpoint and item.collection in gcs for item in self.items(settled=True))
        return has_any and self.has_nothing_else()

    def has_nothing_else(self, *options: str) -> bool:
        """Whether nothing of the run can be restored, so that its trash stays. Then warns.

        `options` are those with which `undo` and `purge` find that trash.
        """
        name = find_called(self.database, self.lock.run).name
        if choose(self.database, name, self.lock.run_id, Query(fetches=True)).plan is not None:
            return False
        log.warning(
            "nothing of run %s can be restored, so its trash stays; %s brings files back, %s deletes them",
            *(name, Command("undo", name, *options), Command("purge", name, "--now", *options)),
        )
        return True

    def purge(self, gcs: AbstractSet[str], chosen: Callable[[str], bool] = lambda _: True) -> None:
        """Delete the trash of these gcs in the chosen directories, except files of pinned or tagged steps.

        Of files with copies, those on other nodes are left to these nodes.
        """
        unmarked, marked = self.in_trash_by_mark()
        for item in marked:
            if item.collection in gcs and item.checkpoint in self.away:
                self.done.troubles.append(Skipped(item.path, self._absence(item) or self.away[item.checkpoint]))
        items = [item for item in unmarked if item.collection in gcs and chosen(item.root)]
        left = self._left_to_other_nodes(items)
        items = [item for item in items if item.id not in left]
        if items:
            self.settle(self.want(items, Location.GONE))

    def in_trash_by_mark(self) -> tuple[list[Item], list[Item]]:
        """The trash: first the files that may be purged; then those that are, or may be, of a pinned or tagged step.

        A pin or tag may have been journalled before the gc and synced after it. The by-products of such a file stay
        too.
        """
        with self.database.read() as connection:
            items = removals.items_of(connection, self.lock.run_id, settled=True)
            run = self.lock.run_id
            steps = user_events.pinned_steps(connection, run) | user_events.tags_of(connection, run).keys()
        records = self._records(items) if steps else {}
        ids = {item_id for item_id, some in records.items() if any(file.global_step in steps for file in some)}
        ids |= {item.id for item in items if item.checkpoint in self.away}
        names = {_stem(item) for item in items if item.id in ids}
        kept = {item.id for item in items if item.id in ids or (not item.checkpoint and _stem(item) in names)}
        return [item for item in items if item.id not in kept], [item for item in items if item.id in kept]

    def _left_to_other_nodes(self, items: Iterable[Item]) -> set[str]:
        """The ids of the files on other nodes that a tier has, and of the by-products there."""
        elsewhere = [item for item in items if self._reach.is_elsewhere(item)]
        with self.database.read() as connection:
            files = reads.files_by_id(connection, [item.checkpoint for item in elsewhere if item.checkpoint])
            copied = ready_copies(connection, files.values())
        return {item.id for item in elsewhere if not item.checkpoint or item.checkpoint in copied}

    def _absence(self, item: Item) -> str:
        return self._reach.absence(item.root, item.collection)

    def _settle(self, items: Sequence[Item], *, takes: bool) -> list[tuple[Item, Settled]]:
        self._reach.seen.clear()
        by_collection = grouped((item.collection, item) for item in items)
        outcomes: list[tuple[Item, Settled]] = []
        for collection, own in by_collection.items():
            with Trash(collection) as trash:
                trash.identities = self.authority.seen
                some = [(item, settled) for item in own if (settled := self._try(trash, item, takes=takes)) is not None]
                self._tidy(trash, [item for item, _ in some])
                outcomes += self._on_disk(trash, some)
        return outcomes

    def _on_disk(self, trash: Trash, outcomes: Sequence[tuple[Item, Settled]]) -> list[tuple[Item, Settled]]:
        """The moves that may be recorded. A file that came home counts only once its directory was fsynced."""
        home = grouped(
            (item.root, item.place) for item, settled in outcomes if settled.at is item.wanted is Location.HOME
        )
        for root, places in list(home.items()):
            try:
                trash.sync_home(root, places)
                del home[root]
            except OSError as error:  # noqa: PERF203 — a directory of each root
                self.done.troubles.append(Skipped(root, reason_of(error)))
        return [(item, settled) for item, settled in outcomes if item.place not in home.get(item.root, ())]

    def _try(self, trash: Trash, item: Item, *, takes: bool) -> Settled | None:
        self.lock.keep()
        refused = self._absence(item) or self.authority.beyond(item.root)
        if not takes:  # else `refused` looked at it just before
            refused = refused or self.authority.in_trash(item, trash)
        if refused:
            self.done.troubles.append(Skipped(item.path, refused))
            return None
        expected = FileFacts(item.size, item.mtime_ns)
        try:
            settled = trash.settle(item.root, item.place, expected, item.wanted, takes=takes)
        except OSError as error:
            self.done.troubles.append(Skipped(item.path, reason_of(error)))
            return None
        self.done.add(item, settled, takes=takes)
        self._progress(1)
        return settled

    def _put_back(self, items: Sequence[Item]) -> None:
        """Undo moves after the lock was lost: files that the new holder of the lock does not know as trash go back."""
        known = {item.id for item in self.items()}
        for item in items:
            if item.wanted is Location.TRASH and item.id not in known:
                with suppress(OSError), Trash(item.collection) as trash:
                    trash.settle(item.root, item.place, FileFacts(item.size, item.mtime_ns), Location.HOME)
                    trash.remove_empty(item.root, [item.place])

    def _tidy(self, trash: Trash, items: Sequence[Item]) -> None:
        """Remove directories that are empty now: those of TTP, and those of the trash."""
        places = grouped((item.root, item.place) for item in items)
        for root, some in places.items():
            try:
                trash.remove_empty(root, some)
            except OSError as error:  # noqa: PERF203 — a directory of each root
                self.done.troubles.append(Skipped(root, reason_of(error)))


@contextmanager
def at_work(database: Database, run: str, *, progress: Callable[[int], None] = lambda _: None) -> Iterator[Worker]:
    """A worker that holds the lock of a run. Raises `RefusedError` if another process has it, `UnknownRunError`."""
    called = find_called(database, run)
    with GcLock(database, called.first, called.id) as lock:
        yield Worker(database, lock, progress=progress)


@lru_cache(maxsize=1)
def _begun(_database: Database, _run_id: int) -> dict[str, JournalWriter]:
    """The journals that the gcs of a run have begun in this process: a training has a gc after each save."""
    return {}


def _is_in_trash(item: Item) -> bool:
    with suppress(OSError), Trash(item.collection) as trash:
        found = trash.find(item.root, item.place, inside=True)
        return found is not None and found.facts == FileFacts(item.size, item.mtime_ns)
    return False


def _stem(item: Item) -> tuple[str, str]:
    return item.collection, item.path.rpartition(".")[0]


LOCK = timedelta(minutes=15)
"""The time that a holder keeps the lock without renewing it, by the clock of the database."""

RENEWED_EVERY = timedelta(minutes=1)
"""The greatest age of a holder's last renewal at which it may change a file."""

_own_locks: set[str] = set()
"""The owners of the locks that this process holds or is taking."""


class GcLock:
    """The lock of a run, from the beginning of the block to its end.

    Raises `RefusedError` if another process has it. A process of this machine loses it when it dies, one of another
    machine when it did not renew the lock for `LOCK`.
    """

    def __init__(self, database: Database, run: str, run_id: int) -> None:
        self._database = database
        self.run = run
        self.run_id = run_id
        self._owner = this_process()
        self._renewed = 0.0

    def __enter__(self) -> GcLock:
        try:
            self._take()
        except BaseException:
            if self._owner in _own_locks:
                self._release()  # an interrupted commit may have taken it
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release the lock; if the catalog is unreachable, the lock expires by itself."""
        self._release()

    def _take(self) -> None:
        """Take the lock. Raises `RefusedError` if another process has it."""
        self._renewed = time.time()
        with self._database.write() as connection:
            reads.lock_run(connection, self.run_id)
            now = clock(connection)
            other = removals.take_lock(connection, self.run_id, self._owner, now, now + LOCK)
            # This process may have been interrupted when it released the lock.
            if other is not None and (is_dead(other) or (is_this_process(other) and other not in _own_locks)):
                removals.release_lock(connection, self.run_id, other)
                other = removals.take_lock(connection, self.run_id, self._owner, now, now + LOCK)
            if other is not None:
                raise RefusedError(
                    f"another gc, undo or purge of run {self.run!r} is at work ({shown(other)})",
                    "wait for it; if it has died, its lock ends within 15 minutes",
                )
            _own_locks.add(self._owner)

    def _release(self) -> None:
        _own_locks.discard(self._owner)  # first: if the release is interrupted, this process can take the lock again
        with suppress(CatalogUnavailableError), self._database.write() as connection:
            removals.release_lock(connection, self.run_id, self._owner)

    def keep(self) -> None:
        """Renew the lock if the last renewal is some time ago. Raises `RefusedError` if it was lost."""
        if abs(time.time() - self._renewed) >= RENEWED_EVERY.total_seconds():
            with self._database.write() as connection:
                self.renew(connection)

    def renew(self, connection: Connection) -> None:
        """Renew the lock in the transaction of a change. Raises `RefusedError` if it was lost."""
        reads.lock_run(connection, self.run_id)
        self._renewed = time.time()
        if not removals.renew_lock(connection, self.run_id, self._owner, clock(connection) + LOCK):
            raise RefusedError(
                f"another process has taken over the files of run {self.run!r} since this one last renewed its lock",
                "this one stops here; check the run, then run the command again",
            )


_NOTHING = Home(set(), set())


class Reach:
    """Checks whether the directories of a run are present, each once, until `seen` is cleared.

    The trash must be in the directory that its files were recorded in, not in another one at that path.
    """

    def __init__(self, database: Database, run_id: int) -> None:
        with database.read() as connection:
            self.homes = homes(connection, run_id)
            self._of_trash = homes_of_trash(connection, removals.items_of(connection, run_id))
            self._of_others = presence.of_other_machines(reads.announced_by(connection, run_id))
        self.seen: dict[tuple[str, str], str] = {}

    def is_elsewhere(self, item: Item) -> bool:
        """Whether a file is in a directory that is not present here, and in which other machines alone have saved."""
        homes = {(item.root, each) for each in self._of_trash.get((item.root, item.collection), _NOTHING).identities}
        return bool(homes) and homes <= self._of_others and bool(self.absence(item.root, item.collection))

    def absence(self, directory: str, collection: str = "") -> str:
        """Why a directory, or the trash of a gc there, is skipped; empty if it is present."""
        key = directory, collection
        if key not in self.seen:
            home, own = self.homes.get(directory, _NOTHING), self._of_trash.get(key, _NOTHING)
            merged = Home(home.identities, own.places | home.places)
            reason = presence.absence(directory, own if own.identities else merged)
            self.seen[key] = f"its directory {reason}" if reason else ""
        return self.seen[key]
