"""Find the state that a run goes on from; and settle it for a launch, once for all its ranks."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, writes
from ckptstore.core import resolver
from ckptstore.core.lineage import Segment, lineage
from ckptstore.core.model import Assignment, Kind, Rejection, Resolution, RestorePlan, Rule, State
from ckptstore.core.stated import parse
from ckptstore.errors import CatalogUnavailableError, NothingRestorableError, UnknownRunError, UsageError
from ckptstore.formats.layouts import read_layout
from ckptstore.ops import exits, lease
from ckptstore.ops.reconcile import reconcile
from ckptstore.ops.register import HIGHEST_STEP
from ckptstore.storage import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Launch, Observed

log = logging.getLogger("ckptstore")


def resolve(
    database: Database,
    run: str,
    *,
    step: int | None = None,
    world_size: int | None = None,
    read_bytes: bool = False,
    take_quarantined: bool = False,
    replicas: str | None = None,
) -> Resolution:
    """The newest whole state of the run's lineage, or of that `step` only, and why newer ones are not taken.

    `world_size` is the number of ranks that will load it (None: as many as saved it); `read_bytes` checks every
    file's digest too; `take_quarantined` takes a state that was found to be bad. `replicas` states who is whose
    replica in launches of as many ranks as the newest: "dp", "none", groups as in "0,4;1,5", or the path of a strategy,
    group info or JSON file (None: what each launch said). Raises `UnknownRunError`, and `UsageError` for values that
    cannot be meant.
    """
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
        world_size=world_size,
        read_bytes=read_bytes,
        take_quarantined=take_quarantined,
        replicas=replicas,
    )


def _bring_up_to_date(database: Database, run_id: int) -> None:
    for skipped in reconcile(database, run_id).skipped:
        log.warning("%s was not taken into the catalog: %s", skipped.path, skipped.reason)


def _choose(
    database: Database,
    run: str,
    run_id: int,
    *,
    step: int | None,
    world_size: int | None,
    read_bytes: bool,
    take_quarantined: bool,
    replicas: str | None = None,
) -> Resolution:
    with database.read() as connection:
        launches = _with_layout(reads.launches_of(connection, run_id), replicas)
        segments = lineage(launches, reads.first_saves(connection, run_id))

    def look(state: State) -> Mapping[str, Observed]:
        return files.observe(state.files, read_bytes=read_bytes)

    candidates = _candidates(database, segments, step)
    resolution = resolver.resolve(run, candidates, look, world_size=world_size, take_quarantined=take_quarantined)
    reached = resolution.plan.global_step if resolution.plan else -1
    judged = {(rejection.launch, rejection.global_step) for rejection in resolution.rejections}
    with database.read() as connection:
        beyond = reads.kinds_beyond(connection, run_id, reached)
    others = [
        _not_a_candidate(launch_id, at, kinds)
        for (launch_id, at), kinds in beyond.items()
        if (launch_id, at) not in judged and step in (None, at)
    ]
    rejections = sorted((*resolution.rejections, *others), key=lambda item: item.global_step, reverse=True)
    return replace(resolution, rejections=tuple(rejections))


def settle(database: Database, launch: Launch, *, take_quarantined: bool = False) -> RestorePlan | None:
    """Where this launch starts, the same for every rank that asks, now or later; None for a fresh start.

    The first answer stored is the launch's answer. Raises `NothingRestorableError` where states once were whole
    and none is now: a fresh start would hide the loss.
    """
    stored = _stored(database, launch)
    if stored is not None:
        return stored[0]
    run_id = find_run(database, launch.run)
    _bring_up_to_date(database, run_id)
    exits.set_aside(database, run_id)
    while not _store(database, launch, run_id, take_quarantined=take_quarantined):
        log.info("the state chosen for launch %s was removed meanwhile: choosing again", launch.id)
    settled = _stored(database, launch)
    if settled is None:
        raise CatalogUnavailableError(f"the restore plan of launch {launch.id} was not kept by {database.name}")
    return settled[0]


def _store(database: Database, launch: Launch, run_id: int, *, take_quarantined: bool) -> bool:
    """Choose where a launch starts and store that; False if retention gave the chosen state up in between."""
    resolution = _choose(
        database,
        launch.run,
        run_id,
        step=None,
        world_size=launch.world_size,
        read_bytes=False,
        take_quarantined=take_quarantined,
    )
    if resolution.lost:
        raise NothingRestorableError(_lost(launch.run, resolution), _lost_hint(launch.run, resolution))
    plan = resolution.plan
    chosen = [(assignment.rank, assignment.source.id) for assignment in plan.ranks] if plan else []
    with database.write() as connection:
        if not lease.settle(connection, run_id, launch.id, {file for _, file in chosen}):
            return False
        writes.store_resolution(
            connection,
            launch_id=launch.id,
            parent=(plan.launch.id, plan.global_step) if plan else None,
            files=chosen,
            now=datetime.now(timezone.utc),
        )
    return True


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
    if origin is None or any(file not in sources for _, file in chosen):
        raise CatalogUnavailableError(f"{database.name} has lost parts of the plan of launch {launch.id}")
    ranks = tuple(Assignment(rank, sources[file]) for rank, file in chosen)
    return (RestorePlan(launch=origin, global_step=parent[1], ranks=ranks),)


def _with_layout(launches: list[Launch], replicas: str | None) -> list[Launch]:
    """The launches, with the stated layout where they have as many ranks as the newest."""
    if replicas is None or not launches:
        return launches
    world_size = launches[-1].world_size
    path = Path(replicas)
    try:
        layout = read_layout([path], world_size) if path.is_file() else parse(replicas, world_size)
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror})", "check its permissions") from None
    return [replace(each, layout=layout) if each.world_size == world_size else each for each in launches]


def _candidates(database: Database, segments: Sequence[Segment], step: int | None) -> Iterator[State]:
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
                state = State(
                    launch=segment.launch,
                    global_step=found,
                    files=reads.files_at(connection, segment.launch.id, found),
                )
            below = found
            yield state


def _not_a_candidate(launch_id: str, step: int, kinds: set[Kind]) -> Rejection:
    """Why a save that is newer than the state chosen, by step or by time, was not even looked at."""
    reason = resolver.UNTRAINED if step == 0 else resolver.NOT_LINEAGE
    in_order = tuple(kind for kind in Kind if kind in kinds)
    return Rejection(launch=launch_id, global_step=step, kinds=in_order, reasons=(reason,))


def _lost(run: str, resolution: Resolution) -> str:
    newest = next(rejection for rejection in resolution.rejections if rejection.was_whole)
    why = newest.reasons[0].detail
    return f"nothing of run {run!r} can be restored: every rank had saved step {newest.global_step}, but {why}"


def _lost_hint(run: str, resolution: Resolution) -> str:
    rules = {reason.rule for rejection in resolution.rejections if rejection.was_whole for reason in rejection.reasons}
    remedy = "resume with take_quarantined=True" if rules == {Rule.QUARANTINED} else "bring the files back"
    return f"see: ckptstore resolve {run} --explain; {remedy}, or start a run of another name"
