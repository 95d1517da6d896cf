"""Carry out what was recorded of files that retention gave up.

Each file goes through phases: what will be done with it is in the catalog before it is done, and that it is done after.
Whoever comes after a crash does what was recorded again, and ends where it would have ended.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog import trash as rows
from ckptstore.catalog.project import OPEN_PHASES
from ckptstore.catalog.runs import find_called
from ckptstore.core.model import Phase, Skipped
from ckptstore.disk.files import FileFacts
from ckptstore.disk.trash import Disk, Trash, TrashResult
from ckptstore.errors import RefusedError
from ckptstore.journal import unread
from ckptstore.journal.sync import sync_run
from ckptstore.journal.writers import shared
from ckptstore.resume.lease import CLOCKS_DIFFER
from ckptstore.retention.authority import Authority
from ckptstore.retention.lock import GcLock
from ckptstore.retention.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.trash import Collection, Item
    from ckptstore.core.events import Event
    from ckptstore.core.model import LaunchKey

    _Act = Callable[[Trash, str, str, FileFacts], TrashResult]

PORTION = 1000
"""How many files are done between two records of it in the catalog."""

_STAYS = {
    TrashResult.OCCUPIED: "another file is at its place now: it stays in the trash",
    TrashResult.CHANGED: "another file is in the trash in its stead: it stays there, and undo brings it back",
}
_GOING = (Phase.MOVING, Phase.DELETING)
_ACTS = {
    Phase.MOVING: Trash.put,
    Phase.RESTORING: Trash.take_back,
    Phase.DELETING: Trash.delete,
    Phase.PURGING: Trash.purge,
}


@dataclass
class Done:
    """What became of files: how many ended how, by phase and outcome, and their bytes.

    `troubles` are those that nothing could be done with now, and why. The next gc, undo or purge tries again.
    """

    files: Counter[tuple[Phase, TrashResult]] = field(default_factory=Counter)
    bytes: Counter[tuple[Phase, TrashResult]] = field(default_factory=Counter)
    troubles: list[Skipped] = field(default_factory=list)

    def count(self, *phases: Phase) -> int:
        """How many files were brought through one of these phases."""
        return sum(self.files[phase, TrashResult.DONE] for phase in phases)

    def size(self, *phases: Phase) -> int:
        """Their bytes."""
        return sum(self.bytes[phase, TrashResult.DONE] for phase in phases)


class Worker:
    """Does to files what their phase says, under the lock of their run, and records it.

    `filled` are the gcs into whose trash something came by it. Of what protects the run's states all was heard but what
    `unread` and `unheard` say: why some journals were not read, and why those of some states, by the ids of their
    files. Nothing is done in a directory that is not present: it may be an empty mount point. Raises `RefusedError`
    where the lock was lost: nothing more is done then, and what was done since it was last held is for its new holder
    to find.
    """

    def __init__(self, database: Database, lock: GcLock, *, disk: Disk | None, progress: Callable[[int], None]) -> None:
        self.database = database
        self.lock = lock
        self.disk = disk or Disk()
        self._progress = progress
        self._reach = Reach(database, lock.run_id)
        self.recorder = shared(database, self._reach.homes)
        self.authority = Authority(database, lock.run, lock.run_id)
        self.done = Done()
        self.filled: set[str] = set()
        self.unread = ""
        self.unheard: dict[str, str] = {}
        self._away: frozenset[str] = frozenset()
        self.hear()

    def hear(self) -> None:
        """Take up what the run's journals say by now."""
        synced = sync_run(self.database, self.lock.run_id)
        self.unread = unread.unheard(synced.skipped)
        if self._away == (away := frozenset(synced.away)):
            return
        self._away = away
        with self.database.read() as connection:
            own = [item.checkpoint for item in rows.items_of(connection, self.lock.run_id, *OPEN_PHASES)]
            files = reads.files_to_judge(connection, self.lock.run_id, [each for each in own if each])
        found = unread.unheard_states(files, away)
        why = {file.id: found.get((file.launch, file.global_step)) for file in files}
        self.unheard = {id_: f"{each.path} {each.reason}" for id_, each in why.items() if each is not None}

    def refuse_unless_all_is_read(self) -> None:
        """Raise `RefusedError` where a journal of the run could not be read: what is deleted does not come back."""
        if self.unread:
            told = f"nothing of run {self.lock.run!r} is deleted: {self.unread}"
            raise RefusedError(told, "make it readable, or take it away")

    def collections(self) -> list[Collection]:
        """The gcs of the run that left something in the trash, newest first."""
        with self.database.read() as connection:
            return rows.collections_of(connection, self.lock.run_id)

    def items(self, *phases: Phase, collection: str | None = None) -> list[Item]:
        """The files of the run, or of one gc of it, that are in one of these phases."""
        with self.database.read() as connection:
            return rows.items_of(connection, self.lock.run_id, *phases, collection=collection)

    def record(self, decide: Callable[[Connection], Sequence[Event]], homes: Iterable[str] = ()) -> None:
        """Keep the events that a look at the catalog decides on, while the lock is held; `homes` hear of them too."""

        def work(connection: Connection) -> tuple[Sequence[Event], tuple[LaunchKey, ...]]:
            self.lock.renew(connection)
            return decide(connection), ()

        for directory in homes:
            if not self._reach.absence(directory):
                self.recorder.home(directory)
        self.recorder.decide(work)

    def finish_what_was_begun(self) -> dict[str, Collection]:
        """Do again what a process that died, or was refused something, had recorded; but remove nothing on its word.

        What was to go and is still at its place is given back: since it was recorded the run may have come to need it.
        Returns of which gc each of those was, by path: a new look decides whether it goes.
        """
        gcs = {each.id: each for each in self.collections()}
        going = self.items(*_GOING)
        others = self.items(Phase.RESTORING, Phase.PURGING)
        for phase, act in ((Phase.MOVING, Trash.halt), (Phase.DELETING, Trash.give_back)):
            some = [replace(item, phase=Phase.MOVING) for item in going if item.phase is phase]
            self.carry_out(some, {Phase.MOVING: act})
        self.carry_out(others)
        left = {item.id for item in self.items(*OPEN_PHASES)} if going else ()
        begun = {item.path: gcs.get(item.collection) for item in going if item.id not in left}
        return {path: gc for path, gc in begun.items() if gc is not None}  # of some no journal tells when they began

    def carry_out(self, items: Sequence[Item], acts: Mapping[Phase, _Act] = _ACTS) -> None:
        """Do what the phase of each of these says, and record what came of it."""
        for start in range(0, len(items), PORTION):
            some = items[start : start + PORTION]
            try:
                self._record(self._act(some, acts))
            except RefusedError:
                self._put_back(some)
                raise

    def _record(self, outcomes: Sequence[tuple[Item, TrashResult]]) -> None:
        ended: dict[Phase, list[Item]] = {}
        for item, outcome in outcomes:
            ended.setdefault(_phase_after(item, outcome), []).append(item)
        run = self.lock.run
        self.record(lambda _: [event for phase, items in ended.items() for event in rows.told(run, items, phase)])
        moved = ended.get(Phase.TRASHED, ())
        self.filled.update(item.collection for item in moved if item.phase is Phase.MOVING)

    def begin(self, items: Sequence[Item], phase: Phase) -> list[Item]:
        """Record what is done with these next, but for those whose directory is away."""
        away = {item.id: Skipped(item.path, reason) for item in items if (reason := self._absence(item))}
        self.done.troubles += away.values()
        self.record(lambda _: rows.told(self.lock.run, [item for item in items if item.id not in away], phase))
        return self.items(phase)

    def purge_due(self, now: datetime) -> None:
        """Delete what has been in the trash for longer than its grace, which begins when its gc has ended.

        The host of that gc may have another clock: it counts 10 minutes longer than was said.
        """
        due = now - CLOCKS_DIFFER
        self.purge({each.id for each in self.collections() if each.ended and each.purge_after <= due})

    def purge(self, gcs: AbstractSet[str], where: Callable[[str], bool] = lambda _: True) -> None:
        """Delete what these have in the trash of some directories, and what is of no step that is pinned or tagged."""
        unmarked, marked = self.in_trash_by_mark()
        unheard = [item for item in marked if item.collection in gcs and item.checkpoint in self.unheard]
        self.done.troubles += [
            Skipped(item.path, self._absence(item) or self.unheard[item.checkpoint]) for item in unheard
        ]
        items = [item for item in unmarked if item.collection in gcs and where(item.root)]
        if items:
            self.carry_out(self.begin(items, Phase.PURGING))

    def in_trash_by_mark(self) -> tuple[list[Item], list[Item]]:
        """What is in the trash: what is of no step that is pinned or tagged; and what is, or may be, with its own.

        Such a step may be in the trash: what a journal says of it may be heard after gc.
        """
        with self.database.read() as connection:
            items = rows.items_of(connection, self.lock.run_id, Phase.TRASHED)
            ids = rows.of_marked_steps(connection, self.lock.run_id)
        ids |= {item.id for item in items if item.checkpoint in self.unheard}
        names = {_stem(item) for item in items if item.id in ids}
        marked = [item for item in items if item.id in ids or (not item.checkpoint and _stem(item) in names)]
        kept = {item.id for item in marked}
        return [item for item in items if item.id not in kept], marked

    def _absence(self, item: Item) -> str:
        return self._reach.absence(item.root, item.collection)

    def _act(self, items: Sequence[Item], acts: Mapping[Phase, _Act]) -> list[tuple[Item, TrashResult]]:
        self._reach.look_again()
        by_collection: dict[str, list[Item]] = {}
        for item in items:
            by_collection.setdefault(item.collection, []).append(item)
        done: list[tuple[Item, TrashResult]] = []
        for collection, own in by_collection.items():
            with Trash(collection, self.disk) as trash:
                trash.identities = self.authority.seen
                acted = [(item, outcome) for item in own if (outcome := self._try(trash, item, acts)) is not None]
                self._tidy(trash, [item for item, _ in acted])
            done += acted
        return done

    def _try(self, trash: Trash, item: Item, acts: Mapping[Phase, _Act]) -> TrashResult | None:
        self.lock.keep()
        act = acts[item.phase]
        beyond = self._absence(item) or self.authority.beyond(item.root)
        if act not in (Trash.put, Trash.delete):  # what goes now was looked at when it was given up
            beyond = beyond or self.authority.in_trash(item, trash)
        if beyond:
            self.done.troubles.append(Skipped(item.path, beyond))
            return None
        try:
            outcome = act(trash, item.root, item.place, FileFacts(item.size, item.mtime_ns))
        except OSError as error:
            self.done.troubles.append(Skipped(item.path, error.strerror or str(error)))
            return None
        self.done.files[item.phase, outcome] += 1
        self.done.bytes[item.phase, outcome] += item.size
        reason = _STAYS.get(outcome)
        if reason is not None and _phase_after(item, outcome) is Phase.TRASHED:
            self.done.troubles.append(Skipped(item.path, reason))
        self._progress(1)
        return outcome

    def _put_back(self, items: Sequence[Item]) -> None:
        """The lock was lost: what came into the trash after its new holder had brought all back goes back too."""
        known = {item.id for item in self.items(*OPEN_PHASES)}
        for item in items:
            if item.phase is Phase.MOVING and item.id not in known:
                with suppress(OSError), Trash(item.collection, self.disk) as trash:
                    trash.take_back(item.root, item.place, FileFacts(item.size, item.mtime_ns))
                    trash.remove_empty(item.root, [item.place], inside=True)

    def _tidy(self, trash: Trash, acted: Sequence[Item]) -> None:
        """Remove the directories that are empty now: those of TTP, and those of the trash."""
        places: dict[tuple[str, bool], list[str]] = {}
        for item in acted:
            is_leaving = item.phase in _GOING
            if "/" in item.place or not is_leaving:
                places.setdefault((item.root, is_leaving), []).append(item.place)
        for (root, is_leaving), some in places.items():
            try:
                trash.remove_empty(root, some, inside=not is_leaving)
            except OSError as error:  # noqa: PERF203 — a directory of each root
                self.done.troubles.append(Skipped(root, error.strerror or str(error)))


@contextmanager
def at_work(
    database: Database, run: str, run_id: int, *, disk: Disk | None, progress: Callable[[int], None]
) -> Iterator[Worker]:
    """A worker that holds the lock of a run. Raises `RefusedError` where another process has it."""
    first = find_called(database, run).first
    with GcLock(database, first, run_id) as lock:
        yield Worker(database, lock, disk=disk, progress=progress)


def _stem(item: Item) -> tuple[str, str]:
    return item.collection, item.path.rpartition(".")[0]


def _phase_after(item: Item, outcome: TrashResult) -> Phase:
    """In the trash; restored, as is what was at its place all along, or another file that was to go; or gone."""
    match item.phase, outcome:
        case (_, TrashResult.OCCUPIED) | (Phase.MOVING, TrashResult.DONE) | (Phase.PURGING, TrashResult.CHANGED):
            return Phase.TRASHED
        case (_, TrashResult.CHANGED | TrashResult.IN_PLACE) | (Phase.RESTORING, TrashResult.DONE):
            return Phase.RESTORED
    return Phase.GONE
