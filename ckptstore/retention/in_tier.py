"""Retention of the copies in one tier: plans which states stay there, and removes the copies of the others.

A removed copy is recorded as trashed: no start uses it, and its object stays in place until the grace ends. So undo
only writes a record, too. Only purge deletes objects, and none that another copy needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.catalog import copies as known_copies
from ckptstore.catalog import reads, user_events
from ckptstore.catalog.protection import protection_of
from ckptstore.catalog.runs import find_run
from ckptstore.core.copies import CopyState
from ckptstore.core.events import CopyRecorded, later
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.limits import CLOCKS_DIFFER, purged_from
from ckptstore.core.model import Skipped
from ckptstore.errors import CkptstoreError, RefusedError
from ckptstore.objects.errors import MissingError, StoreError, WrongBytesError
from ckptstore.objects.tiers import open_tier
from ckptstore.outside import utc_now
from ckptstore.retention import decide
from ckptstore.retention.plan import (
    COPIES_CHANGED,
    Copied,
    Survey,
    check_floor_counts,
    copies_changed,
    protected_since,
    stated,
)
from ckptstore.retention.worker import at_work
from ckptstore.tiers.facts import fault_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.copies import Copy, Tier
    from ckptstore.core.model import Checkpoint
    from ckptstore.objects.store import Store
    from ckptstore.retention.decide import Decision, Key
    from ckptstore.retention.policy import Policy
    from ckptstore.retention.worker import Worker

    Held = tuple[tuple[Checkpoint, Copy], ...]


_MARKED = "pinned or tagged, so its trashed copies are not deleted: undo brings them back"
_LOST = (MissingError, WrongBytesError)  # else the tier did not tell


@dataclass(frozen=True)
class TierPlan:
    """What gc would do with the copies of a run in a tier, and why. Nothing has been done yet."""

    run: str
    run_id: int
    tier: Tier
    policy: Policy
    decision: Decision
    held: Mapping[Key, Held]  # the copies of each state that the tier has, by launch and step
    copied: Mapping[Key, Copied]  # all copies of each state that goes because the tier has too few of it
    floor: set[str]  # the files, by id, by which the states that must stay count


@dataclass(frozen=True)
class TierCollected:
    """The result: copies that were trashed, purged, or brought back, and their bytes; copies that failed, and why."""

    run: str
    tier: str
    copies: int = 0
    bytes: int = 0
    purged: int = 0
    purged_bytes: int = 0
    skipped: tuple[Skipped, ...] = ()
    troubles: tuple[Skipped, ...] = ()


class TierOutcome(NamedTuple):
    """The outcome of gc of the copies of a run: its plan, the result, the error that ended it; None: there is none."""

    run: str
    plan: TierPlan | None = None
    done: TierCollected | None = None
    error: CkptstoreError | None = None


def collect(
    database: Database,
    run: str,
    tier: Tier,
    policy: Policy | None,
    *,
    floor: int | None,
    grace: timedelta | None,
    apply_it: bool,
    allow_mass_delete: bool,
) -> TierOutcome:
    """Plan, and carry the plan out if `apply_it`. Refusals and failures are in the outcome."""
    plan: TierPlan | None = None
    try:
        plan = plan_tier(database, run, tier, stated(database, run, policy, floor=floor, grace=grace))
        if apply_it:
            return TierOutcome(run, plan, execute(database, plan, allow_mass_delete=allow_mass_delete))
        decide.check(plan.decision, allow_mass_delete=allow_mass_delete)
    except CkptstoreError as error:
        return TierOutcome(run, plan, error=error)
    return TierOutcome(run, plan)


def plan_tier(database: Database, run: str, tier: Tier, policy: Policy) -> TierPlan:
    """Plan which states of a run a tier keeps, and which copies go.

    Only states that the tier has complete count for the rules and for the floor. A state that also needs files outside
    the tier to be restored stays. Raises `RefusedError` if no state has the metric of `keep_best`; `UnknownRunError`.
    """
    run_id = find_run(database, run)
    survey = Survey(database, run_id, tier)
    states, held = survey.judged_in(tier)
    decide.check_metric(run, policy, [state.metrics for state in states if state.counts])
    decision = decide.decide(states, policy, survey.now)
    copied = {each.state.key: survey.copied(each.state.key) for each in decision.remove if each.state.problem}
    return TierPlan(run, run_id, tier, policy, decision, held, copied, survey.floor(decision))


def execute(database: Database, plan: TierPlan, *, allow_mass_delete: bool = False) -> TierCollected:
    """Trash the copies of the states that go, oldest first, and purge copies after their grace. Can be repeated.

    Raises `RefusedError` if the plan removes too much, if a copy that must stay is not in the tier, if a state of the
    floor no longer counts, while another process works on the run, and if a journal that may protect a state cannot be
    read.
    """
    decide.check_policy(plan.policy)
    decide.check(plan.decision, allow_mass_delete=allow_mass_delete)
    store = open_tier(plan.tier.url)
    with at_work(database, plan.run) as worker:
        if plan.decision.remove:
            worker.refuse_unless_all_is_read()
            _check_floor(plan)
        purged = TierCollected(plan.run, plan.tier.name)
        if not worker.unheard:
            purged = _purge(worker, plan.run, plan.tier, store, due=utc_now())
        skipped: list[Skipped] = []
        gone = _trash(worker, plan, skipped)
    freed = sum(copy.all_bytes for _, copy in gone)
    return replace(purged, copies=len(gone), bytes=freed, skipped=(*purged.skipped, *skipped))


def undo(database: Database, run: str, tier: Tier) -> TierCollected:
    """Bring back the copies that the last gc of a run trashed in a tier, if their objects are still there.

    The next call brings back those of the gc before. So does this one if the tier has none of the last gc any more.
    """
    back: list[tuple[Checkpoint, Copy]] = []
    troubles = []
    with at_work(database, run) as worker:
        trashed = grouped((copy.at, (file, copy)) for file, copy in _trashed(worker, tier))
        for _, some in sorted(trashed.items(), reverse=True):
            faults = [fault_of(copy) for _, copy in some]
            back = [each for each, fault in zip(some, faults, strict=True) if fault is None]
            for (_, copy), fault in zip(some, faults, strict=True):
                if fault is not None:
                    told = f"is not in tier {tier.name} any more" if isinstance(fault, _LOST) else fault.message
                    troubles.append(Skipped(copy.key, told))
            if not all(isinstance(fault, _LOST) for fault in faults):
                break
        worker.record(lambda _: _told(back, CopyState.READY, utc_now()))
    freed = sum(copy.all_bytes for _, copy in back)
    return TierCollected(run, tier.name, copies=len(back), bytes=freed, troubles=tuple(troubles))


def purge(database: Database, run: str, tier: Tier, *, at_once: bool = False) -> TierCollected:
    """Delete the objects of trashed copies whose grace is over (`at_once`: of all)."""
    with at_work(database, run) as worker:
        worker.refuse_unless_all_is_read()
        return _purge(worker, run, tier, open_tier(tier.url), due=None if at_once else utc_now())


def _trash(worker: Worker, plan: TierPlan, skipped: list[Skipped]) -> list[tuple[Checkpoint, Copy]]:
    """Record that the copies of the states that go are trashed, except states that are protected by now."""
    gone: list[tuple[Checkpoint, Copy]] = []
    now = utc_now()
    over = (now + plan.policy.grace).isoformat()

    def record(connection: Connection) -> list[CopyRecorded]:
        reads.lock_run(connection, plan.run_id)  # a start that fetches holds its state under that lock
        if plan.decision.remove:
            check_floor_counts(connection, plan.run_id, dict.fromkeys(plan.floor))
        protection = protection_of(connection, plan.run_id, now - CLOCKS_DIFFER)
        otherwise = copies_changed(connection, plan.copied)
        gone.clear()
        skipped.clear()
        for verdict in reversed(plan.decision.remove):
            launch, step = key = verdict.state.key
            reason = protected_since(plan.decision, key, protection) or (COPIES_CHANGED if key in otherwise else "")
            if reason:
                skipped.append(Skipped(f"step {step} of launch {launch}", reason))
            else:
                gone.extend(plan.held[key])
        known = known_copies.copies_of(connection, [file.id for file, _ in gone])
        gone[:] = [(file, copy) for file, copy in gone if copy in known.get(file.id, ())]
        return _told(gone, CopyState.TRASHED, now, over)

    worker.record(record)
    return gone


def _check_floor(plan: TierPlan) -> None:
    """Raise `RefusedError` unless the copies of the states that must stay are in the tier."""
    for state in plan.decision.must_stay:
        for _, copy in plan.held[state.key]:
            if fault := fault_of(copy):
                record = Command("verify", plan.run, "--tier", plan.tier.name)
                again = f"record that with {record}, then copy it again: {Command('replicate', plan.run)}"
                hint = again if isinstance(fault, _LOST) else fault.hint
                raise RefusedError(f"step {state.global_step} must stay, and {fault.message}", hint)


def _trashed(worker: Worker, tier: Tier) -> list[tuple[Checkpoint, Copy]]:
    with worker.database.read() as connection:
        every = known_copies.copies_of_run(connection, worker.lock.run_id)
        trashed = {
            file: copy
            for file, some in every.items()
            for copy in some
            if copy.tier.id == tier.id and copy.state is CopyState.TRASHED
        }
        files = reads.files_by_id(connection, list(trashed))
    return [(files[file], copy) for file, copy in trashed.items() if file in files]


def _purge(worker: Worker, run: str, tier: Tier, store: Store, *, due: datetime | None) -> TierCollected:
    """Delete the objects of trashed copies that are due (None: all), and record that they are gone.

    Copies of steps that are pinned or tagged by now stay, or may be by a journal that is not there. So do copies that
    are due while nothing else of the run can be restored.

    Ranks whose files have the same name and bytes share an object, and so do tiers of two users with the same URL. So
    an object that another copy uses stays. So does one with the name and step of a file that waits to be copied: a
    process may be about to find the object, and to record it as that file's copy.
    """
    run_id = worker.lock.run_id
    trashed = _trashed(worker, tier)
    over = [
        (file, copy) for file, copy in trashed if due is None or purged_from(datetime.fromisoformat(copy.detail)) <= due
    ]
    with worker.database.read() as connection:
        every = known_copies.copies_of_run(connection, run_id)
        marked = user_events.pinned_steps(connection, run_id) | user_events.tags_of(connection, run_id).keys()
        waiting = {_named(file) for file in known_copies.lacking(connection, run_id, tier, most=None)}
    stay = {(file.launch, file.global_step) for file, _ in over if file.global_step in marked}
    troubles = [Skipped(copy.key, worker.away[file.id]) for file, copy in over if file.id in worker.away]
    over = [(file, copy) for file, copy in over if file.global_step not in marked and file.id not in worker.away]
    if due is not None and over and worker.has_nothing_else("--tier", tier.name):
        over = []
    going = {(file.id, tier.id, copy.key) for file, copy in over}
    needed = {
        key
        for file, some in every.items()
        for copy in some
        if copy.tier.url == tier.url
        and copy.state is not CopyState.GONE
        and (file, copy.tier.id, copy.key) not in going
        for key in _keys(copy)
    }
    deleted: list[tuple[Checkpoint, Copy]] = []
    for file, copy in over:
        if _named(file) in waiting:
            troubles.append(Skipped(copy.key, "a file of this name and step waits to be copied: purge again later"))
            continue
        try:
            for key in _keys(copy):
                if key not in needed:
                    worker.lock.keep()
                    store.remove(key)
        except StoreError as error:
            troubles.append(Skipped(copy.key, error.message))
            continue
        deleted.append((file, copy))
    if deleted:
        now = utc_now()
        worker.record(lambda _: _told(deleted, CopyState.GONE, now))
    return TierCollected(
        run,
        tier.name,
        purged=len(deleted),
        purged_bytes=sum(copy.all_bytes for _, copy in deleted),
        skipped=tuple(Skipped(f"step {step} of launch {launch}", _MARKED) for launch, step in sorted(stay)),
        troubles=tuple(troubles),
    )


def _named(file: Checkpoint) -> tuple[str, int, str]:
    return file.launch_key, file.global_step, file.path.rpartition("/")[2]


def _keys(copy: Copy) -> list[str]:
    """The keys of a copy, that of the checkpoint first: without it the files beside it are useless."""
    return [copy.key, *(each.key for each in copy.beside)]


def _told(
    held: Sequence[tuple[Checkpoint, Copy]], state: CopyState, now: datetime, detail: str = ""
) -> list[CopyRecorded]:
    """The events for copies, all of one moment, with each file's size and digest when it was copied."""
    at = later(now, *(copy.at for _, copy in held))
    told = []
    for file, copy in held:
        of = replace(file, size=copy.size, digest=copy.digest)
        event = CopyRecorded.of(of, copy.tier, state, at, beside=copy.beside, detail=detail)
        told.append(replace(event, key=copy.key))
    return told
