"""Finds the state that a run goes on from, or that a reference names: the catalog proposes states, the disk decides."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, user_events
from ckptstore.catalog.copies import ready_copies
from ckptstore.catalog.runs import find_reference
from ckptstore.core.gc_paused import gc_paused
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Call, Command
from ckptstore.core.metrics import best_first, mean_metrics
from ckptstore.core.model import SCANNED, Assignment, Initial, Kind, Rejection, Resolution, State, initial_of
from ckptstore.core.reference import Best, Reference
from ckptstore.core.replicas import parse_layout, stand_alone
from ckptstore.core.text import count
from ckptstore.disk import files
from ckptstore.errors import NothingRestorableError, RefusedError, UnknownRunError, UsageError, reason_of
from ckptstore.formats.replica_groups import names_no_parameter_of, read_layout
from ckptstore.journal.sync import as_far_as_allowed, sync_run
from ckptstore.outside import Path
from ckptstore.resume import remedies, resolver
from ckptstore.resume.lineage import Segment, lineage
from ckptstore.resume.reconcile import reconcile
from ckptstore.resume.resolver import Loads, Query

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.reads import Called
    from ckptstore.core.copies import Copy
    from ckptstore.core.model import Launch, LaunchKey, Observed, RestorePlan, Unplaced
    from ckptstore.core.replicas import Layout
    from ckptstore.resume.reconcile import Reconciled

log = logging.getLogger("ckptstore")

_MOST_UNPLACED = 1000


@gc_paused()
def resolve(database: Database, run: str, query: Query) -> Resolution:
    """The state that is asked for, and why newer ones are not taken. `run` may be a reference (`core.reference`).

    Raises `UnknownRunError` and `UsageError`.
    """
    query = query.checked()
    with database.connected():
        run_id, reference = find_reference(database, run)
        with as_far_as_allowed(reference.run):
            bring_up_to_date(database, run_id)
        asked = _asked(database, run_id, reference, query)
        found = choose(database, reference.run, run_id, asked, compares=True)
        if found.plan is not None:
            standing_in = (each.source.path for each in found.plan.ranks if each.source.rank != each.rank)
            check_stated_layout(query.replicas, next(standing_in, None))
        if reference.tag is not None and found.plan is not None:
            _tell_if_saved_since(database, run_id, reference.tag, found.plan)
        return found


def _tell_if_saved_since(database: Database, run_id: int, tag: str, plan: RestorePlan) -> None:
    """Warn if a launch saved the step of a tag again: a tag names a step, and the newest state of it is taken."""
    with database.read() as connection:
        at = user_events.tagged_at(connection, run_id, tag)
    if at is not None and all(each.source.created_at is None or each.source.created_at > at for each in plan.ranks):
        log.warning(
            "launch %s saved step %d after the tag %s was set on it, and its state is taken; the others: %s",
            *(plan.launch.id, plan.global_step, tag, Command("list", plan.launch.run)),
        )


def _asked(database: Database, run_id: int, reference: Reference, query: Query) -> Query:
    """The query, completed by the reference. Raises `UsageError` if both choose a state, or for an unknown tag."""
    reference = _tagged(database, run_id, reference)
    step, name = reference.step, reference.run
    asked = replace(
        query,
        step=query.step if step is None else step,
        best=query.best or reference.best,
        lineage=query.lineage or reference.launch,
    )
    chosen_by_both = (query.step is not None and (step, reference.best) != (None, None)) or (
        query.lineage is not None and reference.launch is not None
    )
    if chosen_by_both:
        raise UsageError(f"the reference to run {name!r} and an option both choose the state", "give one of them")
    return asked.checked()


def _tagged(database: Database, run_id: int, reference: Reference) -> Reference:
    """The reference, with the step in place of its tag. Raises `UsageError` for an unknown tag, and lists the tags."""
    if reference.tag is None:
        return reference
    with database.read() as connection:
        step = user_events.tag_step(connection, run_id, reference.tag)
        tags = sorted(name for names in user_events.tags_of(connection, run_id).values() for name in names)
    if step is None and reference.best is None:
        there = f"its tags: {', '.join(tags)}" if tags else "it has none"
        raise UsageError(
            f"run {reference.run!r} has no tag {reference.tag!r}; {there}", f"see: {Command('list', reference.run)}"
        )
    return replace(reference, tag=None, step=step, best=reference.best if step is None else None)


def choose_state(database: Database, reference: str, *, loads: Loads = Loads.ALL) -> RestorePlan:
    """The restore plan of the state that a reference names (`core.reference`).

    `loads` is the kind of state that the program can load. Raises `UnknownRunError`, `UsageError` for a reference that
    names nothing, and `NothingRestorableError` for a state that is incomplete, or that has files only in tiers.
    """
    found = resolve(database, reference, Query(loads=loads))
    if found.plan is not None:
        if found.step is None:
            _tell_if_another_was_complete(found, reference, found.plan)
        return found.plan
    fetched = resolve(database, reference, Query(loads=loads, fetches=True)).plan
    if fetched is None:
        raise _not_restorable(found, reference)
    tiers = ", ".join(sorted({copies[0].tier.name for copies in fetched.copies.values()}))
    raise NothingRestorableError(
        f"only {tiers} has files of step {fetched.global_step} of run {found.run}: a start of the run fetches them",
        f"see: {Command('resolve', reference, '--explain')}",
    )


def _tell_if_another_was_complete(found: Resolution, reference: str, plan: RestorePlan) -> None:
    """Warn that the newest state, or the best one, was complete once and is not taken now."""
    missed = next((rejection for rejection in found.rejections if rejection.was_whole), None)
    if missed is not None:
        log.warning(
            "step %d of run %s is taken, though step %d of launch %s was complete once: %s; see: %s",
            plan.global_step,
            found.run,
            missed.global_step,
            missed.launch,
            missed.reasons[0].detail,
            Command("resolve", reference, "--explain"),
        )


def step_named(database: Database, reference: str) -> tuple[str, int]:
    """The run and the step that a reference names. A step that is given by number or tag need not be restorable.

    Raises as `choose_state` does, except for a state in tiers.
    """
    run_id, found = find_reference(database, reference)
    if found.tag is not None or found.launch is not None:
        bring_up_to_date(database, run_id)
    if found.launch is not None:
        with database.read() as connection:
            _check_launch(reads.launches_of(connection, run_id), found.run, found.launch)
    found = _tagged(database, run_id, found)
    if found.step is not None:
        return found.run, found.step
    chosen = resolve(database, reference, Query(fetches=True))
    if chosen.plan is None:
        raise _not_restorable(chosen, reference)
    return found.run, chosen.plan.global_step


def step_to_tag(database: Database, reference: str, tag: str) -> tuple[str, int]:
    """As `step_named`. Raises `RefusedError` if RUN@TAG would be the state of another launch than `reference` names."""
    run, step = step_named(database, reference)
    _, found = find_reference(database, reference)
    if found.launch is None:
        return run, step
    by_tag = resolve(database, run, Query(step=step, fetches=True)).plan
    named = resolve(database, reference, Query(fetches=True)).plan
    if by_tag is not None and (named is None or named.launch.id != by_tag.launch.id):
        of_launch = f"{run}/{found.launch}@{tag}"
        raise RefusedError(
            f"a tag is on a step: {run}@{tag} would be step {step} of launch {by_tag.launch.id}",
            f"after {Command('tag', run, step, tag)}, {of_launch} names the state of launch {found.launch}",
        )
    return run, step


def _not_restorable(found: Resolution, reference: str) -> NothingRestorableError:
    return NothingRestorableError(found.why_none, f"see: {Command('resolve', reference, '--explain')}")


def names_state(database: Database, reference: str) -> bool:
    """Whether a reference names one state, and not only a run."""
    _, found = find_reference(database, reference)
    return found != Reference(found.run)


def states_of(database: Database, owner: str) -> list[str]:
    """References to the states of a run, or of the history of a launch (`RUN/LAUNCH`), as the catalog knows them.

    Tags and steps, the newest first; then the best by each metric.
    """
    run_id, _ = find_reference(database, owner)
    with database.read() as connection:
        tags = sorted(name for names in user_events.tags_of(connection, run_id).values() for name in names)
        steps = sorted({step for _, step in reads.steps_of(connection, run_id)}, reverse=True)
        metrics = sorted(
            {name for some in reads.metrics_of(connection, run_id).values() for name in mean_metrics(some)}
        )
    best = [Best(name, mode) for name in metrics for mode in ("min", "max")]
    return [f"{owner}@{state}" for state in (*tags, *steps, *best)]


def bring_up_to_date(database: Database, run_id: int) -> Reconciled:
    """Update the catalog from journals and directories; log the files that were not taken."""
    synced = sync_run(database, run_id)
    reconciled = reconcile(database, run_id, synced=synced)
    for skipped in (*synced.skipped, *reconciled.skipped):
        log.warning("%s was not taken into the catalog: %s", skipped.path, skipped.reason)
    return replace(reconciled, failed=synced.failed)


def _check_launch(launches: Iterable[Launch], run: str, launch: str) -> None:
    if all(each.id != launch for each in launches):
        raise UsageError(f"run {run!r} has no launch {launch!r}", f"see: {Command('history', run)}")


def choose(database: Database, run: str, run_id: int, query: Query, *, compares: bool = False) -> Resolution:
    """As `resolve`, but without updating the catalog first.

    If the plan fetches files and the caller `compares`, the first state that needs no fetching is looked for too.
    """
    with database.read() as connection:
        launches, saved = reads.launches_of(connection, run_id), reads.first_saves(connection, run_id)
        if query.lineage is not None:
            _check_launch(launches, run, query.lineage)
        launches = _with_layout(connection, run_id, launches, saved, query)
        by_id = {launch.id: launch for launch in launches}
        segments = lineage(launches, saved, of=query.lineage)
        failed = reads.failed_loads(connection, run_id)

    def look(state: State) -> Mapping[str, Observed]:
        if query.read_bytes:  # that may take hours
            database.let_go()
        return files.observe(state.files if query.views is None else (), read_bytes=query.read_bytes)

    def hosts(launch: Launch) -> Mapping[int, str]:
        with database.read() as connection:
            return reads.hosts_of(connection, launch.key)

    def copies(state: State) -> Mapping[str, tuple[Copy, ...]]:
        with database.read() as connection:
            return ready_copies(connection, state.files)

    if query.best is not None:
        among = [Segment(launch) for launch in launches] if query.every_lineage else segments
        ranked = _best_first(database, run, run_id, among, query.best)
        states = _states(database, ranked, failed)
        found = resolver.resolve(run, states, look, query, hosts, copies, compares=compares)
        return replace(found, best=query.best)
    states = (
        _states(database, _highest_first(database, run_id, by_id, query.step), failed)
        if query.every_lineage
        else candidates(database, segments, query.step, failed)
    )
    resolution = resolver.resolve(run, states, look, query, hosts, copies, compares=compares)
    parts = {segment.launch.id: segment for segment in segments}
    judged = {(rejection.launch, rejection.global_step) for rejection in resolution.rejections}
    reached = resolution.plan.global_step if resolution.plan else -1
    rejections = list(resolution.rejections)
    with database.read() as connection:
        unplaced = reads.unplaced_of(connection, run_id) if query.step is None else []
        for (launch, step), kinds in reads.kinds_beyond(connection, run_id, reached).items():
            is_older = step > 0 and launch in parts and parts[launch].has(step)  # an older launch may count higher
            if (launch, step) not in judged and not is_older and query.step in (None, step):
                rejections.append(_not_a_candidate(connection, by_id[launch], step, kinds, query.lineage))
        has_none = query.step is not None and not resolution.plan and not rejections
        steps = {step for _, step in reads.steps_of(connection, run_id)} if has_none else ()
    rejections.sort(key=lambda each: each.global_step, reverse=True)
    return replace(
        resolution,
        rejections=tuple(rejections),
        unplaced=newer_than(resolution.plan, unplaced),
        step=query.step,
        steps=tuple(sorted(steps)),
    )


def _not_a_candidate(
    connection: Connection, launch: Launch, step: int, kinds: set[Kind], lineage_of: str | None
) -> Rejection:
    """Why a save was no candidate: one of a higher step than the chosen state, or of an untrained network."""
    state = State(launch=launch, global_step=step, files=())
    if launch.foreign and step:
        verdict = resolver.judge(replace(state, files=reads.files_at(connection, launch, step)), {})
        if isinstance(verdict, Rejection):
            return verdict
    reason = resolver.NOT_LINEAGE if step else resolver.UNTRAINED
    if step and lineage_of is not None:
        reason = replace(reason, detail=f"it is not in the history that leads to launch {lineage_of}")
    remedy = remedies.of_state(reason, state)
    return Rejection(
        launch=launch.id,
        global_step=step,
        kinds=tuple(kind for kind in Kind if kind in kinds),
        reasons=(reason,),
        world_size=launch.world_size,
        remedies=(remedy,) if remedy else (),
    )


def choose_initial(database: Database, launch: Launch, run: Called, query: Query) -> RestorePlan | None:
    """The state that `query.initial` names, for the ranks of a launch whose run has no state of its own; None: none.

    A run that began from this reference before begins from the same state again, even if the reference names another
    one now, unless a fresh start is asked for. Raises as `choose_state` does, and `NothingRestorableError` if that
    state cannot be loaded, if no file of it holds the whole state, or if the run began from a state before and
    `query.initial` is None.
    """
    with database.read() as connection:
        before = initial_of(each for each in reads.launches_of(connection, run.id) if each.id != launch.id)
    if query.fresh:
        before = None
    if query.initial is None:
        if before is not None:
            again, anew = Call("resume", initial=before.reference), Call("resume", fresh=True)
            raise NothingRestorableError(
                f"run {run.name!r} began from {_shown(before)}, and has no state of its own yet",
                f"{again} begins from it again, {anew} without it",
            )
        return None
    if before is not None and before.reference == query.initial:
        plan = _began_from(database, run, before)
    elif find_reference(database, query.initial)[0] == run.id:
        raise UsageError(
            f"initial={query.initial!r} names run {run.name!r} itself", "name a state of another run, or leave it out"
        )
    else:
        plan = choose_state(database, query.initial, loads=Loads.MINDSPORE)
    return _for_ranks(plan, launch)


def _shown(initial: Initial) -> str:
    """The state, for a message."""
    return f"step {initial.global_step} of run {initial.run} (launch {initial.launch})"


def _began_from(database: Database, run: Called, initial: Initial) -> RestorePlan:
    """The state that a run began from before. Raises `NothingRestorableError` if it cannot be loaded now."""
    query = Query(step=initial.global_step, lineage=initial.launch, loads=Loads.MINDSPORE)
    plan: RestorePlan | None = None
    hint = f"see: {Command('resolve', initial.run, '--step', initial.global_step, '--explain')}"
    with database.read() as connection:
        known = reads.called(connection, initial.run)
    try:
        found = resolve(database, initial.run, query)
    except UnknownRunError as error:
        why = error.message if known else f"the catalog has no run {initial.run!r}"
        hint = error.hint if known else f"{Command('scan', 'DIRECTORY', '--run', initial.run)} takes it in"
    except UsageError as error:
        why = error.message
    else:
        plan = found.plan if found.plan is not None and found.plan.launch.id == initial.launch else None
        reasons = [reason.detail for rejection in found.rejections for reason in rejection.reasons]
        why = reasons[0] if reasons else "it has no such save"
    if plan is None:
        raise NothingRestorableError(
            f"run {run.name!r} began from {_shown(initial)} and has no state of its own, and that one cannot be loaded "
            f"now: {why}",
            f"{hint}; {Call('resume', initial='RUN@STEP', fresh=True)} begins from another one",
        )
    return plan


def _for_ranks(plan: RestorePlan, launch: Launch) -> RestorePlan:
    """The plan for as many ranks as a launch has. Raises `NothingRestorableError` if no file holds the whole state."""
    saved = plan.launch
    if plan.in_shares or len(saved.layout.partition(saved.world_size)) > 1:
        what = "each of its files is a share of it" if plan.in_shares else f"its layout is {saved.layout.source}"
        by = count(saved.world_size, "rank", "ranks")
        raise NothingRestorableError(
            f"no file is known to hold all of step {plan.global_step} of run {saved.run!r}, saved by {by}: {what}",
            "begin from a state of one rank, or of ranks that are data parallel",
        )
    # Each of its files is the whole state.
    sources = [each.source for each in plan.ranks]
    own = (Assignment(rank, sources[rank % len(sources)]) for rank in range(launch.world_size))
    return replace(plan, ranks=tuple(own))


def newer_than(plan: RestorePlan | None, found: Sequence[Unplaced]) -> tuple[Unplaced, ...]:
    """The unplaced files of a run that may be newer than a plan, and are still on the disk as they were found.

    A start never passes them over. A file is newer if it was written later or, if the plan's state was scanned too, if
    its likeliest step is higher. Without a plan all are newer. Of very many only those written last are looked at.
    """
    if plan is not None and found:
        written = max((each.source.mtime_ns or 0 for each in plan.ranks), default=0)
        step = plan.global_step if plan.launch.id.startswith(SCANNED) else None
        found = [
            each for each in found if each.mtime_ns > written or (step is not None and (each.best_guess or 0) > step)
        ]
    looked_at = found[:_MOST_UNPLACED]
    return tuple(each for each in looked_at if files.facts_if_seen(each.path) == (each.size, each.mtime_ns))


def _with_layout(
    connection: Connection, run_id: int, launches: list[Launch], saved: Mapping[str, int | None], query: Query
) -> list[Launch]:
    """The launches, with the layout that the user states for those of one world size.

    It is the world size of the newest launch with a state that may be chosen: a refused start has none. `saved` has the
    first saves.
    """
    ours = [launch for launch in launches if not launch.foreign]
    if query.replicas is None or not ours:
        return launches
    parts = map(Segment, reversed(ours)) if query.every_lineage else lineage(launches, saved, of=query.lineage)
    saving = {launch for launch, step in reads.steps_of(connection, run_id) if query.step in (None, step)}
    saving &= {launch for launch, first in saved.items() if first is not None}
    asked = (part.launch for part in parts if part.launch.id in saving and part.has(query.step or 0))
    size = next(asked, ours[-1]).world_size
    layout = stated_layout(query.replicas, size) or stand_alone()
    return [replace(launch, layout=layout) if launch.world_size == size else launch for launch in launches]


def stated_layout(replicas: str | None, world_size: int) -> Layout | None:
    """The layout of `Query.replicas`; None if none is stated.

    Raises `UsageError` if it cannot be read, or is for another number of ranks.
    """
    if replicas is None:
        return None
    path = Path(replicas)
    try:
        return read_layout([path], world_size) if path.is_file() else parse_layout(replicas, world_size)
    except OSError as error:
        raise UsageError(f"cannot read {path} ({reason_of(error)})", "check its permissions") from None


def check_stated_layout(replicas: str | None, checkpoint: str | None) -> None:
    """Raise `UsageError` if `Query.replicas` is a strategy file of another training than the checkpoint's."""
    if replicas is None or checkpoint is None or not Path(replicas).is_file():
        return
    try:
        is_of_another = names_no_parameter_of(Path(replicas), Path(checkpoint))
    except OSError:
        return
    if is_of_another:
        raise UsageError(
            f"{replicas} names no parameter of {checkpoint}", "give the strategy file of the launch that saved it"
        )


def candidates(
    database: Database, segments: Sequence[Segment], step: int | None, failed: Mapping[str, str]
) -> Iterator[State]:
    """The states of a lineage, newest first. Each is read only after the one before was rejected."""
    for segment in segments:
        below: int | None = None
        bounds = [bound for bound in (segment.last_step, step) if bound is not None]
        bound = min(bounds, default=None)
        while True:
            with database.read() as connection:
                found = reads.newest_step(connection, segment.launch.key, below=below, at_most=bound)
                if found is None or (step is not None and found != step):
                    break
                files_of = reads.files_at(connection, segment.launch, found)
            below = found
            yield State(launch=segment.launch, global_step=found, files=files_of, failed=failed)


def _states(database: Database, steps: Iterable[tuple[Launch, int]], failed: Mapping[str, str]) -> Iterator[State]:
    """These states. Each is read only after the one before was rejected."""
    for launch, step in steps:
        with database.read() as connection:
            files_of = reads.files_at(connection, launch, step)
        yield State(launch=launch, global_step=step, files=files_of, failed=failed)


def _best_first(
    database: Database, run: str, run_id: int, segments: Sequence[Segment], best: Best
) -> list[tuple[Launch, int]]:
    """The states in these segments that have a metric, the best first, of equal ones the newer first.

    Raises `UsageError` if no state has it.
    """
    with database.read() as connection:
        measured = {state: mean_metrics(some) for state, some in reads.metrics_of(connection, run_id).items()}
    parts = {segment.launch.id: segment for segment in segments}
    there = [(parts[launch], step, metrics) for (launch, step), metrics in measured.items() if launch in parts]
    there = [(part, step, metrics) for part, step, metrics in there if part.has(step)]
    there.sort(key=lambda each: (each[0].launch.order, each[1]), reverse=True)
    values = [((part.launch, step), metrics[best.metric]) for part, step, metrics in there if best.metric in metrics]
    if not values:
        known = sorted({name for _, _, metrics in there for name in metrics})
        raise UsageError(
            f"no state of run {run!r} has the metric {best.metric!r}; known: {', '.join(known) or 'none'}",
            f"see: {Command('list', run, '--json')}",
        )
    return [state for state, _ in best_first(values, best.mode)]


def newest_states(database: Database, run: str, query: Query, most: int) -> list[tuple[LaunchKey, int]]:
    """The launches and steps of the newest states that a query asks for, at most `most`, newest first."""
    with database.read() as connection:
        run_id = reads.run_id(connection, run) or 0
        launches = reads.launches_of(connection, run_id)
        segments = lineage(launches, reads.first_saves(connection, run_id), of=query.lineage)
        steps = grouped(reads.steps_of(connection, run_id))
    found = ((part, step) for part in segments for step in sorted(steps.get(part.launch.id, ()), reverse=True))
    asked = ((part.launch.key, step) for part, step in found if part.has(step) and query.step in (None, step))
    return list(islice(asked, most))


def _highest_first(
    database: Database, run_id: int, by_id: Mapping[str, Launch], step: int | None
) -> list[tuple[Launch, int]]:
    """The states of all launches, the highest step first, of the same step the newest launch's first."""
    with database.read() as connection:
        saved = [(by_id[launch], found) for launch, found in reads.steps_of(connection, run_id)]
    asked = [each for each in saved if step in (None, each[1])]
    return sorted(asked, key=lambda each: (each[1], each[0].order), reverse=True)
