"""Carry a retention plan out: what is unchanged and unprotected goes to the trash, or is deleted at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptstore.catalog import marks as marking
from ckptstore.catalog import reads
from ckptstore.catalog import trash as rows
from ckptstore.catalog.project import OPEN_PHASES
from ckptstore.catalog.runs import find_run
from ckptstore.catalog.trash import Collection, Item
from ckptstore.core.events import generation
from ckptstore.core.model import Phase, Skipped
from ckptstore.disk import files
from ckptstore.disk.files import FileFacts
from ckptstore.disk.trash import Trash
from ckptstore.errors import RefusedError
from ckptstore.outside import token_hex, utc_now
from ckptstore.resume import lease
from ckptstore.resume.lineage import branches
from ckptstore.retention import decide, path_aliases
from ckptstore.retention.debris import has_checkpoint_beside
from ckptstore.retention.worker import PORTION, at_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.events import Event
    from ckptstore.disk.trash import Disk
    from ckptstore.retention.debris import Target
    from ckptstore.retention.plan import GcPlan, Key
    from ckptstore.retention.worker import Worker


@dataclass(frozen=True)
class Collected:
    """What carrying a plan out did.

    `removed` are the states of it that went, by launch and step; `skipped` those that did not since they changed or
    were protected after the plan was made. `bytes` were moved to the trash, or deleted where `at_once`; `purged_bytes`
    of earlier gcs were deleted since their grace was over.
    """

    run: str
    at_once: bool
    removed: tuple[Key, ...]
    skipped: tuple[Skipped, ...]
    files: int
    bytes: int
    purged_files: int
    purged_bytes: int
    purge_after: datetime | None
    troubles: tuple[Skipped, ...]


def execute(
    database: Database,
    plan: GcPlan,
    *,
    at_once: bool = False,
    allow_mass_delete: bool = False,
    grace: timedelta | None = None,
    progress: Callable[[int], None] = lambda _: None,
    disk: Disk | None = None,
) -> Collected:
    """Carry a plan out; what an earlier gc began and did not come to is given back first. Can be repeated.

    Each state is looked at again just before it goes: one that changed, or that was pinned, tagged or taken by a launch
    meanwhile, as the run's journals tell too, stays. `at_once` deletes instead of moving to the trash; `grace` is the
    policy's own if none is given. Raises `RefusedError` for a plan that removes too much, one whose floor is not what
    it was any more, and while another process works on the files.
    """
    decide.check_policy(plan.policy)
    decide.check(plan.decision, allow_mass_delete=allow_mass_delete)
    if find_run(database, plan.run) != plan.run_id:
        raise RefusedError(f"the plan for run {plan.run!r} was made with another catalog", "make the plan again")
    with at_work(database, plan.run, plan.run_id, disk=disk, progress=progress) as worker:
        begun = worker.finish_what_was_begun()
        if not worker.unread:
            worker.purge_due(utc_now())
        phase = Phase.DELETING if at_once else Phase.MOVING
        gc = _Gc(plan, worker, begun, phase=phase, grace=grace or plan.policy.grace)
        gc.check_floor()
        for some in gc.portions():
            worker.carry_out(gc.give_up(some))
        gc.end()
    done = worker.done
    return Collected(
        run=plan.run,
        at_once=at_once,
        removed=tuple(gc.removed),
        skipped=tuple(gc.skipped.values()),
        files=done.count(Phase.MOVING, Phase.DELETING),
        bytes=done.size(Phase.MOVING, Phase.DELETING),
        purged_files=done.count(Phase.PURGING),
        purged_bytes=done.size(Phase.PURGING),
        purge_after=None if at_once or not gc.began else gc.collection.purge_after,
        troubles=tuple(done.troubles),
    )


class _Gc:
    """One gc: which states are given up, in portions, oldest first, and under what name in the trash."""

    def __init__(
        self, plan: GcPlan, worker: Worker, begun: Mapping[str, Collection], *, phase: Phase, grace: timedelta
    ) -> None:
        self._plan = plan
        self._worker = worker
        self._begun = begun
        self._phase = phase
        self._grace = grace
        now = utc_now()
        new = Collection(f"{now:%Y%m%dT%H%M%S}-{token_hex(3)}", now, now + grace)
        self.collection = self._interrupted() or new
        self.began = False
        self.removed: list[Key] = []
        self.skipped: dict[Key, Skipped] = {}
        self._held = path_aliases.states_in_use(worker.database, plan.targets)

    def _interrupted(self) -> Collection | None:
        """The gc that ended before its time: this one goes on with it, so that one undo brings back both.

        Not if it has taken a file from where the plan has another one now: its trash has one file for each place.
        """
        gcs = (*self._worker.collections(), *self._begun.values())
        found = next((each for each in gcs if not each.ended), None)
        if found is None:
            return None
        trashed = self._worker.items(Phase.TRASHED, collection=found.id)
        places = {(target.root, target.place) for targets in self._plan.targets.values() for target in targets}
        return None if any((item.root, item.place) in places for item in trashed) else found

    def end(self) -> None:
        """All is done: the grace begins, but for an ended gc of which a file was tried again in vain.

        No earlier one's ends sooner than was said when it began.
        """
        now = utc_now()
        own = now + self._grace
        filled = self._worker.filled
        tried_again = {each.id for each in self._begun.values() if each.ended} - filled
        events: list[Event] = []
        for each in self._worker.collections():
            if not each.ended or each.id in filled:
                promised = each.purge_after if each.ended else each.graced_from(now)
                last = max(promised, now + self._grace)
                until = each.purge_after if each.id in tried_again else last
                events.append(each.told(self._worker.lock.run, ended=True, purge_after=until))
                if each.id == self.collection.id:
                    own = last
        self._worker.record(lambda _: events, {item.root for item in self._worker.items(*OPEN_PHASES)})
        self.collection = replace(self.collection, purge_after=own)

    def check_floor(self) -> None:
        """Raise `RefusedError` unless the newest states that stay are still what the plan was made on.

        They are looked at as they were for the plan, through links too: nothing of them is touched.
        """
        if self._plan.removes_nothing:
            return
        changed = _changed(self._plan.floor, lambda target: files.facts(target.path))
        if changed:
            raise RefusedError(f"a state that must stay is not as it was: {changed}", "make the plan again")

    def _check_floor_counts(self, connection: Connection) -> None:
        """Raise `RefusedError` unless the catalog still counts the states of the floor as the plan did.

        Since then one may have failed to load, or the run may have gone back to an older state: then others are the
        floor, and the plan may remove them.
        """
        before = {target.checkpoint: target.before for target in self._plan.floor if target.checkpoint is not None}
        kept = reads.files_by_id(connection, list(before))
        failed = reads.failed_loads(connection, self._plan.run_id)
        steps: dict[str, set[int]] = {}
        for file in kept.values():
            steps.setdefault(file.launch, set()).add(file.global_step)
        launches = reads.launches_of(connection, self._plan.run_id)
        branch_of = branches(launches, reads.first_saves(connection, self._plan.run_id), steps)
        for file_id, file in kept.items():
            turned = file.state is not before[file_id] or file.quarantine or file_id in failed
            if turned or branch_of.get((file.launch, file.global_step)):
                raise RefusedError(
                    f"step {file.global_step} of launch {file.launch} must stay, and does not count any more: it was "
                    "damaged or found to be bad, could not be loaded, or the run went back to an older state",
                    "make the plan again",
                )

    def portions(self) -> Iterator[list[tuple[Key | None, tuple[Target, ...]]]]:
        """The states that go, oldest first, and then the debris, about so many files at a time."""
        some: list[tuple[Key | None, tuple[Target, ...]]] = []
        count = 0
        for verdict in reversed(self._plan.decision.remove):
            targets = self._plan.targets[verdict.state.key]
            some.append((verdict.state.key, targets))
            count += len(targets)
            if count >= PORTION:
                yield some
                some, count = [], 0
        if some:
            yield some
        some = [(None, (each.target,)) for each in self._plan.debris if not has_checkpoint_beside(each.target)]
        if some:
            yield some

    def give_up(self, states: Sequence[tuple[Key | None, tuple[Target, ...]]]) -> list[Item]:
        """Record that these go, but for those that changed or are protected by now."""
        with Trash(self.collection.id) as trash:
            looks = [self._worker.authority.refused(targets, trash) for _, targets in states]
        # A launch that starts without the catalog says so in a journal, and so does who pins by another one.
        self._worker.hear()
        unchanged = [
            each
            for each, change in zip(states, looks, strict=True)
            if not self._skip(each[0], change or self._unheard(each[1]))
        ]
        going: list[tuple[Key | None, tuple[Target, ...]]] = []
        items: list[Item] = []

        def decide(connection: Connection) -> list[Event]:
            self._check_floor_counts(connection)
            now = utc_now()
            marks = marking.marks_of(connection, self._plan.run_id, now - lease.CLOCKS_DIFFER)
            going[:] = [
                (key, targets) for key, targets in unchanged if not self._skip(key, self._protected(key, marks))
            ]
            targets = [target for _, some in going for target in some]
            versions = reads.versions_of(connection, [each.checkpoint for each in targets if each.checkpoint])
            items[:] = [self._item(target, versions, now) for target in targets]
            items[:] = rows.after_what_was_told(connection, items)
            gcs = {each.id: each for each in map(self._of, targets)}
            begun = [each.told(self._worker.lock.run, ended=False) for each in gcs.values()]
            return [*begun, *rows.told(self._worker.lock.run, items, self._phase)]

        self._worker.record(decide)
        if not items:
            return []
        self.began = True
        self.removed += [key for key, _ in going if key is not None]
        every = {item.id: item for item in self._worker.items(self._phase)}
        return [every[item.id] for item in items]  # the oldest state first; what was refused waits for the next gc

    def _unheard(self, targets: Sequence[Target]) -> str:
        """Why nobody knows what protects a state by now; empty if all was heard."""
        reasons = (self._worker.unheard.get(each.checkpoint or "") for each in targets)
        return self._worker.unread or next(filter(None, reasons), "")

    def _skip(self, key: Key | None, reason: str) -> bool:
        if reason and key is not None:
            self.skipped[key] = Skipped(f"step {key[1]} of launch {key[0]}", reason)  # once, if it is tried again
        return bool(reason)

    def _protected(self, key: Key | None, marks: marking.Marks) -> str:
        """Why a state may not go any more that was on its way out when the plan was made."""
        if key is None:
            return ""
        if key in self._held:
            return self._held[key]
        if key[1] in marks.pinned or key[1] in marks.tags:
            return "pinned or tagged since the plan was made"
        made = {verdict.state.launch for verdict in self._plan.decision.keep if verdict.state.restorable}
        if any(launch not in made for launch in marks.held.get(key, ())):
            return "a launch has begun to start from it"
        return ""

    def _of(self, target: Target) -> Collection:
        """The gc that a file goes with: one that did not come to it before, so that one undo brings back all of it."""
        return self._begun.get(target.path, self.collection)

    def _item(self, target: Target, versions: Mapping[str, str], now: datetime) -> Item:
        return Item(
            run=self._worker.lock.run,
            collection=self._of(target).id,
            root=target.root,
            place=target.place,
            size=target.size,
            mtime_ns=target.mtime_ns,
            phase=self._phase,
            changed_at=now,
            checkpoint=target.checkpoint or "",
            of_version=generation(versions.get(target.checkpoint or "", "")),
        )


def _changed(targets: Iterable[Target], look: Callable[[Target], FileFacts | None]) -> str:
    """What of these files is not as it was when the plan was made; empty if nothing is."""
    for target in targets:
        try:
            here = look(target)
        except OSError as error:
            return f"{target.path}: {error.strerror or error}"
        if here != FileFacts(target.size, target.mtime_ns):
            return f"{target.path} has changed since the plan was made"
    return ""
