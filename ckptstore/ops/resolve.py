"""Find the state that a run goes on from; and settle it for a launch, once for all its ranks."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, writes
from ckptstore.core import position, remedies, resolver
from ckptstore.core.lineage import Segment, lineage
from ckptstore.core.model import Assignment, Kind, Rejection, Resolution, RestorePlan, Rule, State
from ckptstore.core.stated import parse
from ckptstore.errors import CatalogUnavailableError, NothingRestorableError, UnknownRunError, UsageError
from ckptstore.formats.layouts import read_layout
from ckptstore.ops import exits, lease
from ckptstore.ops.reconcile import reconcile
from ckptstore.ops.register import HIGHEST_STEP
from ckptstore.ops.sync import sync_run
from ckptstore.storage import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Launch, Observed

log = logging.getLogger("ckptstore")


def resolve(
    database: Database,
    run: str,
    *,
    step: int | None = None,
    lineage_of: str | None = None,
    every_lineage: bool = False,
    world_size: int | None = None,
    read_bytes: bool = False,
    take_quarantined: bool = False,
    replicas: str | None = None,
) -> Resolution:
    """The newest whole state of the run's lineage, or of that `step` only, and why newer ones are not taken.

    The lineage is that of the newest launch, or of the one whose id is `lineage_of`; with `every_lineage` the states of
    all launches count, abandoned ones too, the highest step first. `world_size` is the number of ranks that will load
    it (None: as many as saved it); `read_bytes` checks every file's digest too; `take_quarantined` takes a state that
    was found to be bad. `replicas` states who is whose replica in launches of as many ranks as the newest: "dp",
    "none", groups as in "0,4;1,5", or the path of a strategy, group info or JSON file (None: what each launch said).
    Raises `UnknownRunError`, and `UsageError` for values that cannot be meant.
    """
    if lineage_of is not None and every_lineage:
        raise UsageError("one lineage and all of them are asked for", "give --lineage or --all")
    if step is not None and not 0 <= step <= HIGHEST_STEP:
        raise UsageError(f"step is {step}", "steps are counted from 0")
    if world_size is not None and world_size < 1:
        raise UsageError(f"world size is {world_size}", "a launch has at least one rank")
    run_id = find_run(database, run)
    _bring_up_to_date(database, run_id)
    return _choose(
        database,
        run,
        run_id,
        step=step,
        lineage_of=lineage_of,
        every_lineage=every_lineage,
        world_size=world_size,
        read_bytes=read_bytes,
        take_quarantined=take_quarantined,
        replicas=replicas,
    )


def _bring_up_to_date(database: Database, run_id: int) -> None:
    taken_up = sync_run(database, run_id)
    for skipped in (*taken_up.skipped, *reconcile(database, run_id).skipped):
        log.warning("%s was not taken into the catalog: %s", skipped.path, skipped.reason)


def _choose(
    database: Database,
    run: str,
    run_id: int,
    *,
    step: int | None,
    lineage_of: str | None,
    every_lineage: bool = False,
    world_size: int | None,
    read_bytes: bool,
    take_quarantined: bool,
    replicas: str | None = None,
    takes_whole: bool = True,
) -> Resolution:
    with database.read() as connection:
        launches = _with_layout(reads.launches_of(connection, run_id), replicas)
        if lineage_of is not None and lineage_of not in {launch.id for launch in launches}:
            raise UsageError(f"run {run!r} has no launch {lineage_of!r}", f"see: ckptstore list {run}")
        segments = lineage(launches, reads.first_saves(connection, run_id), of=lineage_of)
        failed = reads.failed_loads(connection, run_id)

    def look(state: State) -> Mapping[str, Observed]:
        return files.observe(state.files, read_bytes=read_bytes)

    def hosts(launch: Launch) -> Mapping[int, str]:
        with database.read() as connection:
            return reads.hosts_of(connection, launch.id)

    if every_lineage:
        found = _of_every_lineage(database, run_id, launches, step, failed)
    else:
        found = candidates(database, segments, step, failed)
    resolution = resolver.resolve(
        run,
        found,
        look,
        world_size=world_size,
        takes_whole=takes_whole,
        take_quarantined=take_quarantined,
        hosts=hosts,
    )
    reached = resolution.plan.global_step if resolution.plan else -1
    judged = {(rejection.launch, rejection.global_step) for rejection in resolution.rejections}
    with database.read() as connection:
        beyond = reads.kinds_beyond(connection, run_id, reached)
        by_id = {launch.id: launch for launch in launches}
        ends = {segment.launch.id: segment.last_step for segment in segments}
        others = [
            resolver.reject_foreign(
                State(launch=by_id[launch_id], global_step=at, files=reads.files_at(connection, launch_id, at))
            )
            if by_id[launch_id].foreign and at
            else _not_a_candidate(by_id[launch_id], at, kinds)
            for (launch_id, at), kinds in beyond.items()
            if (launch_id, at) not in judged and step in (None, at) and not _is_older(launch_id, at, ends)
        ]
    rejections = sorted((*resolution.rejections, *others), key=lambda item: item.global_step, reverse=True)
    return replace(resolution, rejections=tuple(rejections))


def _is_older(launch_id: str, step: int, ends: Mapping[str, int | None]) -> bool:
    """Whether a save that was not looked at is of the lineage: older, though launches with other steps count higher."""
    if step == 0 or launch_id not in ends:
        return False
    end = ends[launch_id]
    return end is None or step <= end


def settle(
    database: Database,
    launch: Launch,
    *,
    step: int | None = None,
    lineage_of: str | None = None,
    take_quarantined: bool = False,
) -> RestorePlan | None:
    """Where this launch starts, the same for every rank that asks, now or later; None for a fresh start.

    The first answer stored is the launch's answer. `step` and `lineage_of` are as in `resolve`: the launch branches off
    there. Raises `NothingRestorableError` where that state cannot be restored, and where states once were whole and
    none is now: a fresh start would hide the loss; `UsageError` where the state has no place in the launch's data.
    """
    if step == 0:
        raise UsageError("step is 0", "to start afresh give the run another name")
    stored = _stored(database, launch)
    if stored is not None:
        return stored[0]
    run_id = find_run(database, launch.run)
    _bring_up_to_date(database, run_id)
    exits.set_aside(database, run_id)
    while not _store(database, launch, run_id, step=step, lineage_of=lineage_of, take_quarantined=take_quarantined):
        log.info("the state chosen for launch %s was removed meanwhile: choosing again", launch.id)
    settled = _stored(database, launch)
    if settled is None:
        raise CatalogUnavailableError(f"the restore plan of launch {launch.id} was not kept by {database.name}")
    return settled[0]


def _store(
    database: Database,
    launch: Launch,
    run_id: int,
    *,
    step: int | None,
    lineage_of: str | None,
    take_quarantined: bool,
) -> bool:
    """Choose where a launch starts and store that; False if retention gave the chosen state up in between."""
    resolution = _choose(
        database,
        launch.run,
        run_id,
        step=step,
        lineage_of=lineage_of,
        world_size=launch.world_size,
        read_bytes=False,
        take_quarantined=take_quarantined,
        takes_whole=launch.layout.any_world_size or launch.world_size == 1,
    )
    is_branch = step is not None or lineage_of is not None
    if resolution.lost:
        raise NothingRestorableError(_lost(launch.run, resolution), _lost_hint(launch.run, resolution))
    plan = resolution.plan
    if plan is None and is_branch:
        raise NothingRestorableError(*_not_there(launch.run, resolution, step, lineage_of))
    start_step = _start_step(launch, plan) if plan else None
    chosen = plan_files(plan) if plan else []
    now = datetime.now(timezone.utc)
    with database.write() as connection:
        if not lease.settle(connection, run_id, launch.id, {file for _, file in chosen}, now):
            return False
        writes.store_resolution(
            connection,
            launch_id=launch.id,
            parent=(plan.launch.id, plan.global_step) if plan else None,
            start_step=start_step,
            files=chosen,
            branched=is_branch,
            now=now,
        )
    return True


def plan_files(plan: RestorePlan) -> list[tuple[int, str]]:
    """The ranks of a plan and the ids of their files, as the catalog keeps it."""
    return [(assignment.rank, assignment.source.id) for assignment in plan.ranks]


def _start_step(launch: Launch, plan: RestorePlan) -> int:
    found = position.first_step(plan.global_step, plan.launch, launch)
    if isinstance(found, position.NoPlace):
        would_do = f"; of the steps before it, {found.earlier} would do: resume(step={found.earlier})"
        raise UsageError(
            f"step {plan.global_step} of launch {plan.launch.id} has no place in the data: {found.reason}",
            f"use the number of ranks and the batch size that were saved{would_do if found.earlier else ''}",
        )
    return found


def find_run(database: Database, run: str) -> int:
    """The id of a run; raises `UnknownRunError` if there is none of that name."""
    is_text = run.encode("utf-8", "ignore").decode("utf-8") == run
    with database.read() as connection:
        found = reads.run_id(connection, run) if is_text else None
    if found is None:
        raise UnknownRunError(f"no run {run!r} in {database.name}", "ckptstore runs shows those there are")
    return found


def _stored(database: Database, launch: Launch) -> tuple[RestorePlan | None] | None:
    """The stored answer in a tuple of one (None in it: a fresh start); None if there is none yet."""
    with database.read() as connection:
        found = reads.resolution(connection, launch.id)
        if found is None:
            return None
        parent, chosen = found
        if parent is None:
            return (None,)
        origin = reads.launch(connection, parent[0])
        sources = reads.files_by_id(connection, list({file for _, file in chosen}))
    if origin is None or not chosen or any(file not in sources for _, file in chosen):
        raise CatalogUnavailableError(f"{database.name} has lost parts of the plan of launch {launch.id}")
    ranks = tuple(Assignment(rank, sources[file]) for rank, file in chosen)
    return (RestorePlan(launch=origin, global_step=parent[1], ranks=ranks),)


def _with_layout(launches: list[Launch], replicas: str | None) -> list[Launch]:
    """The launches, with the stated layout where they have as many ranks as the newest."""
    ours = [launch for launch in launches if not launch.foreign]
    if replicas is None or not ours:
        return launches
    world_size = ours[-1].world_size
    path = Path(replicas)
    try:
        layout = read_layout([path], world_size) if path.is_file() else parse(replicas, world_size)
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror})", "check its permissions") from None
    return [replace(each, layout=layout) if each.world_size == world_size else each for each in launches]


def candidates(
    database: Database, segments: Sequence[Segment], step: int | None, failed: Mapping[str, str]
) -> Iterator[State]:
    """The states of a lineage, newest first, each asked for only when the one before was rejected."""
    for segment in segments:
        below: int | None = None
        bounds = [bound for bound in (segment.last_step, step) if bound is not None]
        bound = min(bounds, default=None)
        while True:
            with database.read() as connection:
                found = reads.newest_step(connection, segment.launch.id, below=below, at_most=bound)
                if found is None or (step is not None and found != step):
                    break
                state = _state(connection, segment.launch, found, failed)
            below = found
            yield state


def _of_every_lineage(
    database: Database, run_id: int, launches: Sequence[Launch], step: int | None, failed: Mapping[str, str]
) -> Iterator[State]:
    """The states of all launches, the highest step first, of one step the newest launch's."""
    by_id = {launch.id: launch for launch in launches}
    with database.read() as connection:
        every = reads.steps_of(connection, run_id)
    for launch_id, found in sorted(every, key=lambda each: (each[1], by_id[each[0]].order), reverse=True):
        if step in (None, found):
            with database.read() as connection:
                state = _state(connection, by_id[launch_id], found, failed)
            yield state


def _state(connection: Connection, launch: Launch, step: int, failed: Mapping[str, str]) -> State:
    return State(launch=launch, global_step=step, files=reads.files_at(connection, launch.id, step), failed=failed)


def _not_a_candidate(launch: Launch, step: int, kinds: set[Kind]) -> Rejection:
    """Why a save that is newer than the state chosen, by step or by time, was not even looked at."""
    reason = resolver.UNTRAINED if step == 0 else resolver.NOT_LINEAGE
    remedy = remedies.of_state(reason, State(launch=launch, global_step=step, files=()))
    return Rejection(
        launch=launch.id,
        global_step=step,
        kinds=tuple(kind for kind in Kind if kind in kinds),
        reasons=(reason,),
        world_size=launch.world_size,
        remedies=(remedy,) if remedy else (),
    )


def _not_there(run: str, resolution: Resolution, step: int | None, lineage_of: str | None) -> tuple[str, str]:
    """That a state that was asked for cannot be restored, and where to read on."""
    asked = [f"step {step}"] if step is not None else []
    asked += [f"a state of the lineage of {lineage_of}"] if lineage_of is not None else []
    reasons = [reason.detail for rejection in resolution.rejections for reason in rejection.reasons]
    why = reasons[0] if reasons else "there is no such save"
    flags = "".join([f" --step {step}" if step is not None else "", f" --lineage {lineage_of}" if lineage_of else ""])
    return (
        f"{' of '.join(asked)} of run {run!r} cannot be restored: {why}",
        f"see: ckptstore resolve {run}{flags} --explain",
    )


def _lost(run: str, resolution: Resolution) -> str:
    newest = _newest_lost(resolution)
    why = newest.reasons[0].detail
    return f"nothing of run {run!r} can be restored: every rank had saved step {newest.global_step}, but {why}"


def _newest_lost(resolution: Resolution) -> Rejection:
    return next(rejection for rejection in resolution.rejections if rejection.was_whole)


def _lost_hint(run: str, resolution: Resolution) -> str:
    rules = {reason.rule for rejection in resolution.rejections if rejection.was_whole for reason in rejection.reasons}
    remedy = "resume with take_quarantined=True" if rules == {Rule.QUARANTINED} else "bring the files back"
    newest = _newest_lost(resolution)
    if newest.reasons[0].rule is Rule.WORLD_SIZE:
        remedy = newest.remedies[0]
    return f"see: ckptstore resolve {run} --explain; {remedy}, or start a run of another name"
