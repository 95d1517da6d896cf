"""Decides where a launch starts, once for all its ranks. `branch` decides ahead that it goes back to an older state.

`decide_start` works in this order: update the catalog from journals and directories, choose a state (`_decide`), refuse
wrong starts (`_check_*`), store the answer with the lease on its files (`_store`), read it back (`_stored`).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.catalog import leases, reads, recent, tallies
from ckptstore.catalog.copies import ready_copies
from ckptstore.catalog.project import project
from ckptstore.catalog.runs import called_in, find_called
from ckptstore.core.events import LaunchStarted
from ckptstore.core.hints import Call, Command
from ckptstore.core.limits import CLOCKS_DIFFER, LEASE
from ckptstore.core.model import BRANCH, SCANNED, Assignment, Grade, Initial, PassedOver, Resolution, RestorePlan, Rule
from ckptstore.core.text import count
from ckptstore.disk.files import facts_if_seen
from ckptstore.disk.trust import TRUST, Trust, user_name
from ckptstore.errors import CatalogUnavailableError, NothingRestorableError, RefusedError, UsageError
from ckptstore.evidence.witnesses import fits
from ckptstore.journal.jsonl import short
from ckptstore.journal.recorder import record_of_run, shared
from ckptstore.journal.sync import Synced, beside_unread
from ckptstore.outside import token_hex, utc_now
from ckptstore.resume import exits, position, remedies
from ckptstore.resume.liveness import living
from ckptstore.resume.resolve import bring_up_to_date, choose, choose_initial
from ckptstore.resume.resolver import NEWEST, Query, is_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.reads import Called
    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint, Launch, LaunchKey, Rejection, Skipped, View

    AskRanks = Callable[[Resolution], Mapping[int, View] | None]

log = logging.getLogger("ckptstore")

MOST_PASSED = 20  # so many newer states that were passed over are kept with their reasons, the newest ones

_SAVES_OF_A_RUN = 3  # a launch that saved so many steps was under way
_LONGEST_DETAIL = 500
_MOST_LOOKED_AT = 20  # so many older states are judged, each with all its files, for a hint
_TRIES = 5  # a gc can remove the chosen state only once: each failure after that is another gc's


class Decided(NamedTuple):
    """Where a launch starts, as it was decided and stored."""

    launch: Launch  # as the catalog has it now
    plan: RestorePlan | None  # None: a fresh start
    at: datetime
    passed: tuple[PassedOver, ...] = ()  # newer states that it does not start from
    initial: RestorePlan | None = None  # the state of another run that a fresh start begins from


class _Decision(NamedTuple):
    """A choice that is not stored yet."""

    resolution: Resolution
    start_step: int | None = None
    beside: RestorePlan | None = None  # the highest complete state of another history that no user gave up
    initial: RestorePlan | None = None  # the state of another run to begin from

    @property
    def plan(self) -> RestorePlan | None:
        return self.resolution.plan


def decide_start(
    database: Database,
    launch: Launch,
    query: Query,
    ask_ranks: AskRanks,
    unread: Sequence[Skipped],
) -> Decided:
    """Where this launch starts, the same for every rank that asks: the first answer stored is the launch's answer.

    A launch that asks for a step or a lineage branches off there. A run without a state of its own begins from
    `query.initial` (`choose_initial`, which raises too). `ask_ranks` gets the choice by this process's view of the
    disk, and returns each rank's view if one of them does not see its file. `unread` are journals that could not be
    read before. It raises:

    - `NothingRestorableError` if the state asked for cannot be restored. Also if states of any branch were complete
      once and none can be restored: a fresh start would hide them.
    - `UsageError` if the state has no position in the launch's data.
    - `RefusedError` if files of each chosen state change before it can be stored, or if a journal or an unplaced file
      may hold a newer state. Also if a user who is not trusted saved the state, or if the launch's stored answer is
      outdated, since later launches have saved.
    """
    query = _for_ranks_of(launch, query).checked()
    if query.step == 0:
        raise UsageError("step is 0", "to start afresh give the run another name")
    with database.read() as connection:
        stored = _stored(connection, database, launch)
        if stored is not None:
            _check_overtaken(connection, launch)
            return stored
        run = called_in(connection, database, launch.run)
    reconciled = bring_up_to_date(database, run.id)
    unread, left_out = (*unread, *reconciled.failed), [each.path for each in reconciled.skipped]
    exits.set_aside(database, run.id)
    with database.connected():
        for _ in range(_TRIES):
            decision = _decide(database, launch, run, query, ask_ranks, unread=unread, left_out=left_out)
            decided = _store(database, launch, run, query, decision)
            if decided is not None:
                break
            log.info("the state chosen for launch %s was deleted while it started: choosing again", launch.id)
        else:
            raise RefusedError(
                f"every candidate state was deleted while launch {launch.id} of run {run.name!r} was choosing",
                "end what removes files of the run, and start again",
            )
    if decided.plan is not None:
        _note_proof(database, decided.plan, launch)
    return decided


def _for_ranks_of(launch: Launch, query: Query) -> Query:
    query = replace(query, takes_whole=launch.any_file_serves)
    return replace(query, world_size=launch.world_size, steps_per_epoch=launch.steps_per_epoch)


def _decide(
    database: Database,
    launch: Launch,
    run: Called,
    query: Query,
    ask_ranks: AskRanks,
    *,
    unread: Sequence[Skipped],
    left_out: Sequence[str],
) -> _Decision:
    """Choose where the launch starts; `unread` are journals, `left_out` the paths of files that were not adopted.

    Raises as `decide_start` does.
    """
    if query.fresh:
        resolution = Resolution(run=run.name, plan=None)
        return _Decision(resolution, initial=_initial(database, launch, run, query))
    resolution = choose(database, run.name, run.id, query)
    views = ask_ranks(resolution)
    if views is not None:
        query = replace(query, views=views)
        resolution = choose(database, run.name, run.id, query)
    plan = resolution.plan
    if resolution.lost:
        raise _lost(database, run.id, resolution)
    if plan is None and query.goes_back:
        raise _not_there(resolution, query)
    if not query.goes_back:
        if resolution.unplaced:  # newer files that a scan could not place
            what, remedy = remedies.of_unplaced(resolution.run, resolution.unplaced, query.steps_per_epoch)
            raise _may_be_newer(resolution, what, remedy)
        _check_unread(database, run.id, resolution, unread, left_out)
    if plan is None:
        _check_fresh(database, launch, run.id, resolution, query)
        return _Decision(resolution, initial=_initial(database, launch, run, query))
    _check_whose(plan, run.name, "to go on from it")
    start_step = _start_step(database, launch, plan, query)
    return _Decision(resolution, start_step, _highest_beside(database, run.id, query, resolution))


def _initial(database: Database, launch: Launch, run: Called, query: Query) -> RestorePlan | None:
    plan = choose_initial(database, launch, run, query)
    if plan is not None:
        _check_whose(plan, plan.launch.run, "to begin from it")
    return plan


def _store(database: Database, launch: Launch, run: Called, query: Query, decision: _Decision) -> Decided | None:
    """Store the decision and hold the files of its state; None if one of them was removed since it was chosen.

    Returns the launch's answer, which another rank may have stored before.
    """
    plan, initial, passed = decision.plan, decision.initial, _passed_over(decision)
    sources = plan.sources if plan else []
    now = utc_now()

    def work(connection: Connection) -> Decided | None:
        other = reads.run_id(connection, initial.launch.run) if initial else None
        for each in sorted({run.id, other or run.id}):  # in a fixed order: two runs may begin from each other at once
            reads.lock_run(connection, each)
        stored = _stored(connection, database, launch)
        if stored is not None:  # by another rank since this one asked, whatever the clocks say
            return stored
        if initial is not None and not reads.are_as_chosen(connection, initial.sources):
            return None
        if not hold(connection, run.id, launch.key, sources, now):
            return None
        if plan is not None and plan.copies:
            fetched = [file for file in sources if file.id in plan.copies]
            if ready_copies(connection, fetched).keys() != {file.id for file in fetched}:
                return None
        start = start_event(
            launch,
            plan,
            now,
            start_step=decision.start_step,
            branched=query.goes_back,
            passed=passed,
            initial=initial,
            reference=query.initial or "",
        )
        project(connection, [start])
        return _stored(connection, database, launch)

    decided = database.in_write(work)
    if decided is not None:
        _say_what_is_missed(decision)
    return decided


def _stored(connection: Connection, database: Database, launch: Launch) -> Decided | None:
    """The stored answer; None if there is none yet."""
    decision = reads.resolution(connection, launch.key)
    if decision is None:
        return None
    now = reads.launch(connection, launch.key) or launch
    origin = reads.launch(connection, decision.parent[0]) if decision.parent else None
    sources = reads.files_by_id(connection, list({file for _, file in decision.plan}))
    if now.initial is not None:
        origin = reads.launch(connection, now.initial.launch_key)
    elif decision.parent is None:
        return Decided(now, None, decision.at, decision.passed)
    if origin is None or not decision.plan or any(file not in sources for _, file in decision.plan):
        raise CatalogUnavailableError(f"{database.name} has lost parts of the plan of launch {launch.id}")
    ranks = tuple(Assignment(rank, sources[file]) for rank, file in decision.plan)
    if now.initial is not None:
        initial = RestorePlan(launch=origin, global_step=now.initial.global_step, ranks=ranks)
        return Decided(now, None, decision.at, decision.passed, initial)
    copies = ready_copies(connection, sources.values()) if origin.has_copies else {}
    plan = RestorePlan(launch=origin, global_step=now.parent_step or 0, ranks=ranks, copies=copies)
    return Decided(now, plan, decision.at, decision.passed)


def hold(connection: Connection, run_id: int, key: LaunchKey, files: Collection[Checkpoint], now: datetime) -> bool:
    """Lease the state of these files to a launch; False if retention has given up a file since it was chosen.

    Called in the transaction that stores the plan.
    """
    reads.lock_run(connection, run_id)  # retention takes this lock too: each sees the other's changes
    if not reads.are_as_chosen(connection, files):
        return False
    if files:
        leases.hold(connection, key, now + LEASE)
    return True


def keep_holding(database: Database, key: LaunchKey) -> None:
    """Extend the lease of a launch that is alive."""
    until = utc_now() + LEASE
    database.in_write(lambda connection: leases.hold(connection, key, until))


def branch(database: Database, plan: RestorePlan) -> str:
    """Make the plan's state the one that its run goes on from. Returns the id of a launch that stands for the decision.

    That launch saves nothing. The next launch that asks goes on from the state, and later saves are abandoned. Until
    then the state is leased. Raises `RefusedError` if it was removed since it was chosen.
    """
    if not isinstance(plan, RestorePlan):
        why = "None: nothing can be restored" if plan is None else f"a {type(plan).__name__}"
        raise UsageError(f"the plan is {why}", "give the plan of a resolution, as resolve('RUN', step=1200).plan")
    launch_id = f"{BRANCH}{plan.global_step}-{token_hex(3)}"
    run = plan.launch.run

    def decide(connection: Connection) -> tuple[list[Event], Sequence[Checkpoint]]:
        now = utc_now()
        run_id = reads.run_id(connection, run)
        if run_id is None:
            raise UsageError(f"there is no run {run!r} any more")
        launch = replace(
            plan.launch.undecided(), id=launch_id, owner=None, created_at=reads.next_moment(connection, run, now)
        )
        project(connection, [LaunchStarted(launch)])
        if not hold(connection, run_id, launch.key, plan.sources, now):
            raise RefusedError(
                f"step {plan.global_step} of run {run!r} was removed since it was chosen",
                f"if gc did that, {Command('undo', run)} brings it back while it is in the trash",
            )
        return [start_event(launch, plan, now, start_step=plan.global_step, branched=True)], plan.sources

    record_of_run(database, decide)
    _warn_of_the_living(database, run)
    return launch_id


def _warn_of_the_living(database: Database, run: str) -> None:
    """Warn if a launch of the run still trains after a decision to go back: its saves are of the abandoned branch."""
    called = find_called(database, run)
    with database.read() as connection:
        key = living(connection, called.id)
        launch = reads.launch(connection, key) if key else None
    if launch is not None:
        log.warning(
            "launch %s of run %s is training, and what it saves is given up too: stop it, as with: %s",
            *(launch.id, called.name, Command("exit", called.name)),
        )


def start_event(
    launch: Launch,
    plan: RestorePlan | None,
    at: datetime,
    *,
    start_step: int | None,
    branched: bool,
    passed: tuple[PassedOver, ...] = (),
    initial: RestorePlan | None = None,
    reference: str = "",
) -> LaunchStarted:
    """The event that a launch starts from the state of a plan (None: afresh, or from `initial` of another run)."""
    begins = Initial(initial.launch.run, initial.launch.id, initial.global_step, reference) if initial else None
    facts = replace(
        launch,
        decided=True,
        parent=plan.launch.id if plan else None,
        parent_step=plan.global_step if plan else None,
        start_step=start_step,
        branched=branched,
        initial=begins,
    )
    files = plan or initial
    ranks = tuple((each.rank, each.source) for each in files.ranks) if files else ()
    return LaunchStarted(facts, at, plan.launch if plan else None, ranks, passed=passed)


def _check_overtaken(connection: Connection, launch: Launch) -> None:
    """Raise `RefusedError` if a launch that began later has saved: this id was used before."""
    run = reads.called(connection, launch.run)
    if run is None:
        return
    saved = reads.first_saves(connection, run.id)
    later = [each for each in reads.launches_of(connection, run.id) if each.order > launch.order and each.decided]
    newest = next((each for each in reversed(later) if each.id in saved), None)
    if newest is not None:
        raise RefusedError(
            f"launch id {launch.id!r} of run {run.name!r} is older than launch {newest.id}, which has saved since: a "
            "start with this id would go on from an old state",
            "give each start a launch id of its own, also one that is requeued",
        )


def _may_be_newer(resolution: Resolution, what: str, remedy: str) -> RefusedError:
    """The error for something that may be newer than the state that a start would take."""
    plan = resolution.plan
    step = f"step {plan.global_step}" if plan else "the beginning"
    other = Call("resume", step=plan.global_step) if plan else Call("resume", fresh=True)
    would = f"run {resolution.run!r} would start from {step}"
    return RefusedError(f"{would}, and {what}", f"{remedy}; to start from {step} all the same: {other}")


def _check_unread(
    database: Database, run_id: int, resolution: Resolution, unread: Sequence[Skipped], left_out: Sequence[str]
) -> None:
    """Raise `RefusedError` if a journal that could not be read may record a newer state.

    - The journal is of a rank and launch that the catalog has no directory of, and not older than the chosen state.
    - Or a file beside the journal was not adopted, and is not older than the chosen state.

    The clocks of two machines may differ by `CLOCKS_DIFFER`.
    """
    if not unread:
        return
    with database.read() as connection:
        told = {f"rank_{each.rank}-{short(each.launch)}-" for each in reads.sources_of(connection, run_id)}
    plan = resolution.plan
    saved = max((each.source.mtime_ns or 0 for each in plan.ranks), default=0) if plan else 0
    oldest = saved - int(CLOCKS_DIFFER.total_seconds()) * 10**9
    for each in unread:
        name = each.path.rpartition("/")[2]
        is_new = name.startswith("rank_") and not name.startswith(tuple(told))
        newer = [each.path] if is_new else beside_unread(Synced(skipped=(each,)), left_out)
        if all((seen := facts_if_seen(path)) is None or seen.mtime_ns < oldest for path in newer):
            continue
        what = f"{each.path}, which may tell of a newer state, cannot be read: {each.reason}"
        raise _may_be_newer(resolution, what, "make it readable")


def _check_whose(plan: RestorePlan, run: str, to_do: str) -> None:
    """Raise `RefusedError` if a user who is not trusted saved the state: two users' runs may have the same name."""
    owner = plan.launch.owner
    if owner is not None and not Trust.of().may_go_on(plan.launch):
        writer = user_name(owner)
        raise RefusedError(
            f"step {plan.global_step} of run {run!r} was saved by user {writer} ({plan.ranks[0].source.path})",
            f"{to_do} set {TRUST}={writer}; else give your run a name of its own",
        )


def _check_fresh(database: Database, launch: Launch, run_id: int, resolution: Resolution, query: Query) -> None:
    """Raise `NothingRestorableError` if a fresh start would hide states that the run has or had.

    That is one of these:

    - a state of an abandoned branch,
    - a state that was complete once and is lost,
    - a state that a launch resumed from, and whose files no record here names,
    - several saves of one launch, none of them ever complete, as if its ranks save at different steps.

    Saves before a deliberate fresh start do not count.
    """
    run, nothing = resolution.run, f"nothing of run {resolution.run!r} can be restored"
    with database.read() as connection:
        others = [each for each in reads.launches_of(connection, run_id) if each.id != launch.id]
        steps = tallies.steps_saved(connection, run_id)
    since = _begun_anew(others)
    if not since:
        of_every_lineage = replace(query, step=None, lineage=None, every_lineage=True)
        every = choose(database, resolution.run, run_id, of_every_lineage)
        if every.plan is not None:
            found = every.plan.launch.id
            raise NothingRestorableError(
                f"{nothing} except step {every.plan.global_step} of launch {found}, which was abandoned when the run "
                "went back to an older state",
                f"see: {Command('resolve', run, '--all')}; choose it with {Call('resume', lineage=found)}, or start a "
                "run of another name",
            )
        if every.lost:
            raise _lost(database, run_id, every, "--all")
        went_on = [each for each in others if each.parent]
        if went_on:
            raise NothingRestorableError(
                f"{nothing}, though launch {went_on[-1].id} went on after step {went_on[-1].parent_step} of launch "
                f"{went_on[-1].parent}: no record of the files of that step is found here",
                f"start when the catalog is back; if it is lost: {Command('scan', 'DIRECTORY', '--run', run)}; if the "
                f"files are lost, start over: {Call('resume', 'model', 'dataset', fresh=True)}",
            )
    # Leave out this launch: its other ranks may have had their answer before, and have saved since.
    saved = {each: steps[each] for each in since or steps if each in steps and each != launch.id}
    most = max(saved, key=lambda each: saved[each], default="")
    if saved.get(most, 0) >= _SAVES_OF_A_RUN:
        why = _first_reason(resolution)
        raise NothingRestorableError(
            f"{nothing}: launch {most} saved {saved[most]} steps, and none of them is complete"
            + (f"; the newest: {why}" if why else ""),
            f"see: {Command('resolve', run, '--explain')}; to begin afresh give the run another name",
        )


def _begun_anew(launches: Sequence[Launch]) -> list[str]:
    """The launches since the last deliberate fresh start, and that one; none if there is none, or one resumed since."""
    since: list[str] = []
    for each in reversed(launches):
        if each.parent is not None:
            return []
        since.append(each.id)
        if each.branched:
            return since
    return []


def _start_step(database: Database, launch: Launch, plan: RestorePlan, query: Query) -> int:
    found = position.first_step(plan.global_step, plan.launch, launch)
    other_data = position.other_data(plan.launch, launch)
    if not isinstance(found, position.NoPosition):
        if other_data:
            name = find_called(database, launch.run).name
            log.warning("run %s goes on after an epoch's end with other data: %s", name, other_data)
        return found
    as_before = "the number of ranks and the batch size that were saved"
    if (plan.launch.world_size, plan.launch.batch_size) == (launch.world_size, launch.batch_size):
        as_before = "the data that it was trained with"
    earlier = earlier_start(database, launch, plan.global_step, query)
    would_do = f"; the newest earlier step that works is {earlier}: {Call('resume', step=earlier)}" if earlier else ""
    raise UsageError(
        f"step {plan.global_step} of launch {plan.launch.id} has no matching position in this dataset: {found.reason}",
        f"use {as_before}{would_do}",
    )


def earlier_start(
    database: Database, launch: Launch, below: int, query: Query = NEWEST, fits: Callable[[int], bool] = lambda _: True
) -> int | None:
    """The newest step before `below` from which a launch can start, at a step of its own that `fits`; None if none."""
    query = _for_ranks_of(launch, query)
    run = find_called(database, launch.run)
    with database.read() as connection:
        known = {each.id: each for each in reads.launches_of(connection, run.id)}
        saved = reads.steps_of(connection, run.id)

    def has_position(step: int, origin: Launch) -> bool:
        start = position.first_step(step, origin, launch)
        return not isinstance(start, position.NoPosition) and fits(start)

    steps = {step for origin, step in saved if 0 < step < below and has_position(step, known[origin])}
    for step in sorted(steps, reverse=True)[:_MOST_LOOKED_AT]:
        plan = choose(database, run.name, run.id, replace(query, step=step)).plan
        if plan is not None and has_position(step, plan.launch):
            return step
    return None


def _highest_beside(database: Database, run_id: int, query: Query, resolution: Resolution) -> RestorePlan | None:
    """The highest complete state, if it is of another history that no user gave up: two jobs at once leave one."""
    after = resolution.plan.global_step if resolution.plan else 0
    beside = {
        (each.launch, each.global_step)
        for each in resolution.rejections
        if is_beside(each) and each.global_step > after
    }
    if not beside or query.goes_back:
        return None
    with database.read() as connection:
        if any(launch.branched for launch in reads.launches_of(connection, run_id)):
            return None
    highest = choose(database, resolution.run, run_id, replace(query, every_lineage=True)).plan
    return highest if highest is not None and (highest.launch.id, highest.global_step) in beside else None


def _passed_over(decision: _Decision) -> tuple[PassedOver, ...]:
    """The newer states that a launch does not start from, newest first, without those that a user gave up."""
    passed = []
    beside = decision.beside
    whole = (beside.launch.id, beside.global_step) if beside else None
    for each in decision.resolution.rejections:
        reason = each.reasons[0]
        is_given_up = is_beside(each) and (each.launch, each.global_step) != whole
        if not is_given_up and reason.rule is not Rule.UNTRAINED:
            detail = reason.detail.replace("\0", "").encode("utf-8", "backslashreplace").decode("utf-8")
            passed.append(PassedOver(each.launch, each.global_step, reason.rule, detail[:_LONGEST_DETAIL]))
    return tuple(passed[:MOST_PASSED])


def _say_what_is_missed(decision: _Decision) -> None:
    """Warn of newer states that were complete once, of many that never were, and of a history that was not given up."""
    resolution, plan, beside = decision.resolution, decision.plan, decision.beside
    run, see = resolution.run, f"see: {Command('resolve', resolution.run, '--explain')}"
    missed = [rejection for rejection in resolution.rejections if rejection.was_whole]
    partly = [each for each in resolution.rejections if each.served or (plan is None and _was_saved(each))]
    goes_on = f"run {run} goes on after step {plan.global_step}" if plan else f"run {run} starts from the beginning"
    if plan is not None and missed:
        newest, reason = missed[0], missed[0].reasons[0]
        if reason.rule is Rule.QUARANTINED:
            log.warning(
                "%s, since step %d is quarantined: %s. The same fault returns unless you remove its cause: check the "
                "learning rate, the loss scale and the data; %s loads that step anyway",
                goes_on,
                newest.global_step,
                reason.detail,
                Call("resume", take_quarantined=True),
            )
        else:
            more = count(len(missed) - 1, "more newer state is", "more newer states are")
            others = f"; {more} lost too" if len(missed) > 1 else ""
            which = f"step {newest.global_step} of launch {newest.launch}"
            see = f"see: {Command('history', run)}"  # it shows this even after the run has saved that step again
            log.warning("%s, though %s was complete once: %s%s; %s", goes_on, which, reason.detail, others, see)
    elif len(partly) >= (_SAVES_OF_A_RUN if plan else 1):
        steps = count(len(partly), "step that was saved since then is", "steps that were saved since then are")
        log.warning(
            "%s; %s incomplete; the newest one because: %s; %s", goes_on, steps, partly[0].reasons[0].detail, see
        )
    if plan is not None and beside is not None:
        log.warning(
            "%s of launch %s. Step %d of launch %s is complete too, and no user gave it up: to go on from "
            "step %d instead, stop this job and start it again with %s",
            goes_on,
            plan.launch.id,
            beside.global_step,
            beside.launch.id,
            beside.global_step,
            Call("resume", lineage=beside.launch.id),
        )


def _was_saved(rejection: Rejection) -> bool:
    return rejection.reasons[0].rule is not Rule.UNTRAINED and not is_beside(rejection)


def _note_proof(database: Database, plan: RestorePlan, launch: Launch) -> None:
    """Record that a scanned state fits the dataset: the length of an epoch is the missing proof of its step."""
    saved, steps_per_epoch = plan.launch, launch.steps_per_epoch
    is_alike = steps_per_epoch is not None and saved.world_size == launch.world_size
    if not (saved.id.startswith(SCANNED) and is_alike) or steps_per_epoch is None:
        return

    def is_of_data(file: Checkpoint) -> bool:
        return fits(file.path, file.global_step, steps_per_epoch, saved.order)

    if not all(is_of_data(each.source) for each in plan.ranks):  # possible if the step was asked for
        return
    with database.read() as connection:
        open_ones = [file for file in reads.consistent_files(connection, saved.key) if is_of_data(file)]
    recorder = shared(database)
    if open_ones:
        recorder.amend([(file, file.amended(grade=Grade.PROVEN, doubt="")) for file in open_ones])
    if saved.steps_per_epoch is None:
        recorder.home_beside(plan.ranks[0].source)
        known = replace(saved.undecided(), steps_per_epoch=steps_per_epoch)
        recorder.record([LaunchStarted(known, data_at=utc_now())])


def _not_there(resolution: Resolution, query: Query) -> NothingRestorableError:
    step, lineage = query.step, query.lineage
    which = "no state" if step is None else f"step {step}"
    which += "" if lineage is None else f" of the lineage of {lineage}"
    can = "can" if step is None else "cannot"
    flags = ["--step", step] if step is not None else []
    flags += ["--lineage", lineage] if lineage else []
    why = _first_reason(resolution) or "there is no such save"
    return NothingRestorableError(
        f"{which} of run {resolution.run!r} {can} be restored: {why}",
        f"see: {Command('resolve', resolution.run, *flags, '--explain')}",
    )


def _first_reason(resolution: Resolution) -> str:
    reasons = (reason.detail for rejection in resolution.rejections for reason in rejection.reasons)
    return next(reasons, "")


def _lost(database: Database, run_id: int, resolution: Resolution, *flags: str) -> NothingRestorableError:
    """The error for a run whose states were complete once and are lost; `flags` of `resolve` show them."""
    lost = [rejection for rejection in resolution.rejections if rejection.was_whole]
    newest = lost[0]
    reasons, remedy = newest.reasons[:1], "bring the files back"
    with database.read() as connection:
        if any(each.files for each in recent.waiting(connection, run_id)):
            remedy = f"{Command('undo', resolution.run)} brings back what gc moved to the trash"
    if reasons[0].rule is Rule.WORLD_SIZE:
        reasons, remedy = newest.reasons[:2], newest.remedies[0]
    elif reasons[0].rule is Rule.OTHER_EPOCHS:
        remedy = f"give the dataset that it was trained with; {newest.remedies[0]}"
    elif reasons[0].rule is Rule.FOREIGN_FORMAT:
        remedy = newest.remedies[0] if newest.remedies else "go on in the format of its files"
    elif {reason.rule for rejection in lost for reason in rejection.reasons} == {Rule.QUARANTINED}:
        remedy = f"{Call('resume', take_quarantined=True)} loads it anyway"
    why = "; and ".join(reason.detail for reason in reasons)
    return NothingRestorableError(
        f"nothing of run {resolution.run!r} can be restored: step {newest.global_step} was whole, but {why}",
        f"see: {Command('resolve', resolution.run, *flags, '--explain')}; {remedy}, or start over: "
        f"{Call('resume', 'model', 'dataset', fresh=True)}",
    )
