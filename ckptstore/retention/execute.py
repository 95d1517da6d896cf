"""Runs gc for one run, or for all with a policy: makes a plan, and carries it out if asked. A failure stops no other.

Unchanged, unprotected files go to the trash, or are deleted at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, recent, removals, user_events
from ckptstore.catalog.protection import Protection, protection_of
from ckptstore.catalog.removals import Collection, Item
from ckptstore.catalog.runs import find_run
from ckptstore.core.events import generation
from ckptstore.core.hints import Command
from ckptstore.core.limits import CLOCKS_DIFFER
from ckptstore.core.model import Location, Skipped
from ckptstore.core.naming import SEVERAL
from ckptstore.disk import files
from ckptstore.disk.files import FileFacts
from ckptstore.disk.trash import Trash
from ckptstore.disk.waiting import for_each, portions
from ckptstore.errors import CkptstoreError, PlanChangedError, RefusedError, UnknownRunError, UsageError, reason_of
from ckptstore.outside import Path, token_hex, utc_now
from ckptstore.resume.examine import Damaged, Whole, examine
from ckptstore.retention import decide, path_aliases
from ckptstore.retention.debris import has_checkpoint_beside
from ckptstore.retention.plan import (
    AGAIN,
    COPIES_CHANGED,
    GcPlan,
    check_floor_counts,
    copies_changed,
    plan_gc,
    protected_since,
    stated,
)
from ckptstore.retention.worker import PORTION, at_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.recent import Waiting
    from ckptstore.core.copies import Tier
    from ckptstore.core.events import Event
    from ckptstore.retention.debris import Target
    from ckptstore.retention.decide import Key
    from ckptstore.retention.policy import Policy
    from ckptstore.retention.worker import Worker

    Going = tuple[Key | None, tuple[Target, ...]]  # a state and its files; None: debris


@dataclass(frozen=True)
class Collected:
    """The result of carrying out a plan."""

    run: str
    at_once: bool
    removed: tuple[Key, ...]  # the states that went, by launch and step
    skipped: tuple[Skipped, ...]  # those that changed or were protected after the plan was made
    files: int  # moved to the trash; `at_once`: deleted
    bytes: int
    purged_files: int  # of earlier gcs, since their grace was over
    purged_bytes: int
    purge_after: datetime | None
    troubles: tuple[Skipped, ...]


@dataclass(frozen=True)
class RunCollected:
    """The outcome of a run's gc: its plan, its actions, the error that ended it; each None if there is none."""

    run: str
    plan: GcPlan | None = None
    done: Collected | None = None
    error: CkptstoreError | None = None
    waiting: Sequence[Waiting] = ()  # the trash after it, the gc first whose grace ends first


def names(database: Database, run: str | None, *, all_runs: bool) -> Sequence[str]:
    """The runs to collect. Raises `UsageError` if none is named, or the catalog is empty, with a hint what to do."""
    with database.read() as connection:
        is_empty = not reads.first_names(connection)
        is_known = run is not None and reads.run_id(connection, run) is not None
        with_policy = user_events.runs_with_policy(connection)
    if is_empty:
        where = run if run is not None and Path(run).is_dir() else "DIRECTORY"
        raise UsageError(
            f"{database.name} has no checkpoints yet", f"to record those of a directory: {Command('scan', where)}"
        )
    if run is not None and not is_known and Path(run).is_dir():
        raise UnknownRunError(
            f"{run!r} is a directory, not a run",
            f"to list the runs: {Command('runs')}; to take in a directory: {Command('scan', run)}",
        )
    if run is not None:
        return [run]
    if not all_runs:
        raise UsageError("no run is named", f"name one of those that {Command('runs')} shows, or give --all")
    return with_policy


def collect(
    database: Database,
    run: str,
    policy: Policy | None,
    *,
    floor: int | None = None,
    grace: timedelta | None = None,
    apply_it: bool = False,
    at_once: bool = False,
    allow_mass_delete: bool = False,
    agreed: str | None = None,
    tier: Tier | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> RunCollected:
    """Plan, and carry the plan out if `apply_it`. Refusals and failures are in the outcome.

    `tier` is one of the nodes' own disks: a state is removed from it only if tiers above have all its files. Of these,
    gc removes the ones on this node.
    `agreed` is the digest of the plan that the user has seen: another plan is not carried out.
    """
    plan: GcPlan | None = None
    try:
        plan = plan_gc(database, run, stated(database, run, policy, floor=floor, grace=grace), tier=tier)
        if not apply_it:
            decide.check(plan.decision, allow_mass_delete=allow_mass_delete)
            return RunCollected(run, plan, waiting=_waiting(database, plan))
        if agreed not in (None, plan.digest):
            raise PlanChangedError(f"the plan for run {run!r} has changed since it was shown", "look at the new one")
        done = execute(database, plan, at_once=at_once, allow_mass_delete=allow_mass_delete, progress=progress)
    except CkptstoreError as error:
        return RunCollected(run, plan, error=error)
    return RunCollected(run, plan, done, waiting=_waiting(database, plan))


def _waiting(database: Database, plan: GcPlan) -> Sequence[Waiting]:
    with database.read() as connection:
        return recent.waiting(connection, plan.run_id)


def execute(
    database: Database,
    plan: GcPlan,
    *,
    at_once: bool = False,
    allow_mass_delete: bool = False,
    trusts_floor: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Collected:
    """Carry out a plan. Can be repeated; unfinished removals of an earlier gc are undone first.

    Each state is checked again just before it goes. It stays if it changed, or if it was pinned, tagged or taken by a
    launch since. `at_once` deletes instead of moving to the trash. A deletion cannot be undone: so the files that the
    floor keeps are read first, and compared with their digests, unless `trusts_floor`. Raises `RefusedError` for a plan
    that removes too much, if the floor changed since the plan, and while another process works on the run's files.
    """
    decide.check_policy(plan.policy)
    decide.check(plan.decision, allow_mass_delete=allow_mass_delete)
    if find_run(database, plan.run) != plan.run_id:
        raise RefusedError(f"the plan for run {plan.run!r} was made with another catalog", AGAIN)
    if at_once and plan.targets and not trusts_floor:
        _check_floor(plan)
        _check_digests(database, plan)
    with at_work(database, plan.run, progress=progress) as worker:
        interrupted = worker.recover()
        if not worker.unheard:
            worker.purge_due(utc_now())
        gc = _Gc(plan, worker, interrupted, at_once=at_once)
        for states in gc.portions():
            gc.remove(states)
        gc.end()
    done = worker.done
    counted = done.deleted if at_once else done.trashed
    return Collected(
        run=plan.run,
        at_once=at_once,
        removed=tuple(gc.removed),
        skipped=tuple(gc.skipped.values()),
        files=counted["files"],
        bytes=counted["bytes"],
        purged_files=done.purged["files"],
        purged_bytes=done.purged["bytes"],
        purge_after=None if at_once or not gc.began else gc.collection.purge_after,
        troubles=tuple(done.troubles),
    )


def _check_floor(plan: GcPlan) -> None:
    """Raise `RefusedError` unless the files of the states that must stay are unchanged since the plan.

    Links are followed, as for the plan: these files are not touched.
    """
    for target in plan.floor:
        try:
            is_same = files.facts(target.path) == FileFacts(target.size, target.mtime_ns)
            change = "" if is_same else "has changed since the plan was made"
        except OSError as error:
            change = f"cannot be looked at: {reason_of(error)}"
        if change:
            raise RefusedError(f"a state that must stay is not as it was: {target.path} {change}", AGAIN)


def _check_digests(database: Database, plan: GcPlan) -> None:
    """Raise `RefusedError` unless the files that the floor keeps have the bytes that were recorded."""
    with database.read() as connection:
        kept = reads.files_by_id(connection, [target.checkpoint for target in plan.floor if target.checkpoint])
    seen = for_each(lambda file: examine(file, read_bytes=True), list(kept.values()), waits=True)
    for file, found in zip(kept.values(), seen, strict=True):
        if not isinstance(found, Whole):
            why = "is gone" if found is None else found.detail if isinstance(found, Damaged) else found.reason
            hint = f"look at it with: {Command('verify', plan.run, '--digest')}; or leave out --now"
            raise RefusedError(f"{file.path} must stay, but {why}", hint)


class _Gc:
    """One gc: the states that go, in portions, oldest first, and the name of its trash."""

    def __init__(self, plan: GcPlan, worker: Worker, interrupted: Iterable[Collection], *, at_once: bool) -> None:
        self._plan = plan
        self._worker = worker
        self._at_once = at_once
        now, grace = utc_now(), plan.policy.grace
        new = Collection(f"{now:%Y%m%dT%H%M%S}-{token_hex(3)}", now, now + grace)
        chosen = next(filter(self._has_room, interrupted), new)
        longest = max(chosen.purge_after, chosen.created_at + grace)  # a promised grace gets no shorter
        self.collection = replace(chosen, purge_after=longest)
        self.began = False
        self.removed: list[Key] = []
        self.skipped: dict[Key, Skipped] = {}
        self._held = path_aliases.states_in_use(worker.database, plan.targets)

    def _has_room(self, interrupted: Collection) -> bool:
        """Whether this gc can continue an interrupted one, so that one undo restores both.

        A trash has one file for each place: there is no room if it has one from a place that the plan removes now.
        """
        trashed = self._worker.items(settled=True, collection=interrupted.id)
        places = {(target.root, target.place) for targets in self._plan.targets.values() for target in targets}
        return not any((item.root, item.place) in places for item in trashed)

    def end(self) -> None:
        """End the gc: its grace begins."""
        now = utc_now()
        self._worker.end(self._worker.collections(), now)
        self.collection = replace(self.collection, purge_after=self.collection.graced_from(now))

    def portions(self) -> Iterator[list[Going]]:
        """The states that go, oldest first, and then the debris: about `PORTION` files at a time."""
        keys = [verdict.state.key for verdict in reversed(self._plan.decision.remove)]
        states: list[Going] = [(key, self._plan.targets[key]) for key in keys]
        yield from portions(states, PORTION, lambda each: len(each[1]))
        debris: list[Going] = [(None, (each,)) for each in self._plan.debris if not has_checkpoint_beside(each)]
        if debris:
            yield debris

    def remove(self, states: Sequence[Going]) -> None:
        """Remove these, except those that changed or are protected now. Raises `RefusedError` if the floor changed."""
        _check_floor(self._plan)
        with Trash(self.collection.id) as trash:
            looks = [self._worker.authority.refused(targets, trash) for _, targets in states]
        self._worker.hear()  # a launch that starts without the catalog records that in a journal
        unchanged = [
            each
            for each, change in zip(states, looks, strict=True)
            if not self._skip(each[0], change or self._unheard(each[1]))
        ]
        items = self._record(unchanged)
        settled = self._worker.settle(items, takes=True)
        # A checkpoint of several files cannot be deleted in one step: it is in the trash now.
        left = [item for item in settled if item.wanted is Location.TRASH] if self._at_once else ()
        if left:
            self._worker.settle(self._worker.want(left, Location.GONE), takes=True)

    def _record(self, states: Sequence[Going]) -> list[Item]:
        """Record that these go, except states protected by now. Returns their files, the oldest state first."""
        going: list[Going] = []
        items: list[Item] = []
        before = {target.checkpoint: target.before for target in self._plan.floor if target.checkpoint is not None}

        def decide(connection: Connection) -> list[Event]:
            check_floor_counts(connection, self._plan.run_id, before)
            now = utc_now()
            protection = protection_of(connection, self._plan.run_id, now - CLOCKS_DIFFER)
            asked = {key for key, _ in states}
            planned = {key: each for key, each in self._plan.copied.items() if key in asked}
            otherwise = copies_changed(connection, planned)
            going[:] = [
                (key, targets)
                for key, targets in states
                if not self._skip(key, self._protected(key, protection) or (COPIES_CHANGED if key in otherwise else ""))
            ]
            targets = [target for _, some in going for target in some]
            versions = reads.versions_of(connection, [each.checkpoint for each in targets if each.checkpoint])
            made = [self._item(target, versions, now) for target in targets]
            items[:] = removals.moved(removals.last_changes(connection, made))
            begun = [self.collection.told(self._worker.lock.run, ended=False)] if items else []
            return [*begun, *removals.told(items)]

        self._worker.record(decide)
        self.began = self.began or bool(items)
        self.removed += [key for key, _ in going if key is not None]
        return items

    def _unheard(self, targets: Sequence[Target]) -> str:
        """Why a state's protection is unknown; empty if all journals were read."""
        reasons = (self._worker.away.get(each.checkpoint or "") for each in targets)
        return self._worker.unheard or next(filter(None, reasons), "")

    def _skip(self, key: Key | None, reason: str) -> bool:
        if reason and key is not None:
            self.skipped[key] = Skipped(f"step {key[1]} of launch {key[0]}", reason)  # once, even if retried
        return bool(reason)

    def _protected(self, key: Key | None, protection: Protection) -> str:
        """Why a state that the plan removes must stay now."""
        if key is None:
            return ""
        return self._held.get(key) or protected_since(self._plan.decision, key, protection)

    def _item(self, target: Target, versions: Mapping[str, str], now: datetime) -> Item:
        is_deleted = self._at_once and target.format not in SEVERAL
        return Item(
            run=self._worker.lock.run,
            collection=self.collection.id,
            root=target.root,
            place=target.place,
            size=target.size,
            mtime_ns=target.mtime_ns,
            wanted=Location.GONE if is_deleted else Location.TRASH,
            changed_at=now,
            checkpoint=target.checkpoint or "",
            of_version=generation(versions.get(target.checkpoint or "", "")),
        )
