"""Find the state that a run goes on from, and say why newer ones are not taken."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog.runs import find_run
from ckptstore.core import validate
from ckptstore.core.gc_paused import gc_paused
from ckptstore.core.model import Kind, Rejection, Resolution, State
from ckptstore.core.replicas import parse_layout
from ckptstore.disk import files
from ckptstore.errors import UsageError
from ckptstore.formats.replica_groups import read_layout
from ckptstore.journal.sync import sync_run
from ckptstore.outside import Path
from ckptstore.resume import remedies, resolver
from ckptstore.resume.lineage import Segment, lineage
from ckptstore.resume.reconcile import reconcile
from ckptstore.resume.unplaced import newer_than

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.model import Launch, LaunchKey, Observed, View
    from ckptstore.core.replicas import Layout
    from ckptstore.resume.reconcile import Reconciled

log = logging.getLogger("ckptstore")


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which state of a run is asked for: the newest whole one of its lineage, or of that `step` only.

    The lineage is that of the newest launch, or of the one whose id is `lineage`; with `every_lineage` the states of
    all launches count, abandoned ones too, the highest step first. `world_size` is the number of ranks that will load
    it (None: as many as saved it), `takes_whole` whether each of them takes a file of the whole state; `read_bytes`
    checks every file's digest too; `take_quarantined` takes a state that was found to be bad, `takes_foreign` one that
    MindSpore cannot load; `fresh` takes none, and gives up what there is. `replicas` states who is
    whose replica in launches of as many ranks as the newest: "dp", "none", groups as in "0,4;1,5", or the path of a
    strategy, group info or JSON file (None: what each launch said). `steps_per_epoch` is that of the dataset, which a
    state that a scan found must fit, unless it is asked for (None: not known). `views` are what each rank that will
    load it sees of the files (None: all see what this process does).
    """

    step: int | None = None
    lineage: str | None = None
    every_lineage: bool = False
    world_size: int | None = None
    takes_whole: bool = True
    read_bytes: bool = False
    take_quarantined: bool = False
    takes_foreign: bool = True
    fresh: bool = False
    replicas: str | None = None
    steps_per_epoch: int | None = None
    views: Mapping[int, View] | None = None

    @property
    def goes_back(self) -> bool:
        """Whether a launch that starts there gives up what came after."""
        return self.fresh or self.step is not None or self.lineage is not None

    def checked(self) -> Query:
        """The query, with numbers as numbers. Raises `UsageError` for values that make no sense."""
        if self.lineage is not None and self.every_lineage:
            raise UsageError("one lineage and all of them are asked for", "give --lineage or --all")
        if self.fresh and (self.step is not None or self.lineage is not None):
            raise UsageError("a fresh start and an older state are asked for", "give one of them")
        step = None if self.step is None else validate.step_of(self.step)
        world_size = None if self.world_size is None else validate.ranks("world size", self.world_size)
        return replace(self, step=step, world_size=world_size)


NEWEST = Query()


@gc_paused()
def resolve(database: Database, run: str, query: Query) -> Resolution:
    """The state that is asked for, and why newer ones are not taken. Raises `UnknownRunError` and `UsageError`."""
    query = query.checked()
    with database.connected():
        run_id = find_run(database, run)
        bring_up_to_date(database, run_id)
        return choose(database, run, run_id, query)


def bring_up_to_date(database: Database, run_id: int) -> Reconciled:
    """Take in what journals and directories tell and the catalog lacks; what was not taken is logged."""
    synced = sync_run(database, run_id)
    reconciled = reconcile(database, run_id)
    for skipped in (*synced.skipped, *reconciled.skipped):
        log.warning("%s was not taken into the catalog: %s", skipped.path, skipped.reason)
    return reconciled


def choose(database: Database, run: str, run_id: int, query: Query) -> Resolution:
    """As `resolve`, of what the catalog knows by now."""
    step = query.step
    with database.read() as connection:
        launches = _with_layout(reads.launches_of(connection, run_id), query.replicas)
        by_id = {launch.id: launch for launch in launches}
        if query.lineage is not None and query.lineage not in by_id:
            raise UsageError(f"run {run!r} has no launch {query.lineage!r}", f"see: ckptstore list {quote(run)}")
        segments = lineage(launches, reads.first_saves(connection, run_id), of=query.lineage)
        failed = reads.failed_loads(connection, run_id)

    def look(state: State) -> Mapping[str, Observed]:
        if query.read_bytes:  # that may take hours
            database.let_go()
        return files.observe(state.files if query.views is None else (), read_bytes=query.read_bytes)

    def hosts(launch: Launch) -> Mapping[int, str]:
        with database.read() as connection:
            return reads.hosts_of(connection, launch.key)

    if query.every_lineage:
        found = _of_every_lineage(database, run_id, by_id, step, failed)
    else:
        found = candidates(database, segments, step, failed)
    resolution = resolver.resolve(
        run,
        (replace(state, views=query.views) for state in found),
        look,
        world_size=query.world_size,
        takes_whole=query.takes_whole,
        take_quarantined=query.take_quarantined,
        takes_foreign=query.takes_foreign,
        steps_per_epoch=query.steps_per_epoch if step is None else None,
        hosts=hosts,
    )
    reached = resolution.plan.global_step if resolution.plan else -1
    rejections = list(resolution.rejections)
    judged = {(rejection.launch, rejection.global_step) for rejection in resolution.rejections}
    with database.read() as connection:
        unplaced = reads.unplaced_of(connection, run_id) if step is None else []
        beyond = reads.kinds_beyond(connection, run_id, reached)
        parts = {segment.launch.id: segment for segment in segments}
        for (launch_id, at), kinds in beyond.items():
            is_older = at > 0 and launch_id in parts and parts[launch_id].has(at)  # in launches that count higher
            if (launch_id, at) in judged or is_older or step not in (None, at):
                continue
            launch = by_id[launch_id]
            if launch.foreign and at:
                state = State(launch=launch, global_step=at, files=reads.files_at(connection, launch, at))
                rejections.append(resolver.reject_foreign(state))
            else:
                rejections.append(_not_a_candidate(launch, at, kinds))
    rejections.sort(key=lambda item: item.global_step, reverse=True)
    return replace(resolution, rejections=tuple(rejections), unplaced=newer_than(resolution.plan, unplaced))


def _with_layout(launches: list[Launch], replicas: str | None) -> list[Launch]:
    ours = [launch for launch in launches if not launch.foreign]
    layout = stated_layout(replicas, ours[-1].world_size) if ours else None
    if layout is None:
        return launches
    return [replace(each, layout=layout) if each.world_size == ours[-1].world_size else each for each in launches]


def stated_layout(replicas: str | None, world_size: int) -> Layout | None:
    """Who is whose replica as a person states it, in words or by the path of a file (`Query.replicas`); None if nobody.

    Raises `UsageError` for what cannot be read, or is not of so many ranks.
    """
    if replicas is None:
        return None
    path = Path(replicas)
    try:
        return read_layout([path], world_size) if path.is_file() else parse_layout(replicas, world_size)
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror})", "check its permissions") from None


def candidates(
    database: Database, segments: Sequence[Segment], step: int | None, failed: Mapping[str, str]
) -> Iterator[State]:
    """The states of a lineage, newest first, each asked for only when the one before was rejected."""
    for launch, found in _steps(database, segments, step):
        with database.read() as connection:
            state = _state(connection, launch, found, failed)
        yield state


def newest_states(database: Database, run_id: int, query: Query, most: int) -> list[tuple[LaunchKey, int]]:
    """The launches and steps of the newest states that a query asks for, so many at most, newest first."""
    with database.read() as connection:
        launches = reads.launches_of(connection, run_id)
        segments = lineage(launches, reads.first_saves(connection, run_id), of=query.lineage)
    return [(launch.key, step) for launch, step in islice(_steps(database, segments, query.step), most)]


def _steps(database: Database, segments: Sequence[Segment], step: int | None) -> Iterator[tuple[Launch, int]]:
    for segment in segments:
        below: int | None = None
        bounds = [bound for bound in (segment.last_step, step) if bound is not None]
        bound = min(bounds, default=None)
        while True:
            with database.read() as connection:
                found = reads.newest_step(connection, segment.launch.key, below=below, at_most=bound)
            if found is None or (step is not None and found != step):
                break
            below = found
            yield segment.launch, found


def _of_every_lineage(
    database: Database, run_id: int, by_id: Mapping[str, Launch], step: int | None, failed: Mapping[str, str]
) -> Iterator[State]:
    """The states of all launches, the highest step first, of one step the newest launch's."""
    with database.read() as connection:
        every = reads.steps_of(connection, run_id)
    for launch_id, found in sorted(every, key=lambda each: (each[1], by_id[each[0]].order), reverse=True):
        if step in (None, found):
            with database.read() as connection:
                state = _state(connection, by_id[launch_id], found, failed)
            yield state


def _state(connection: Connection, launch: Launch, step: int, failed: Mapping[str, str]) -> State:
    return State(launch=launch, global_step=step, files=reads.files_at(connection, launch, step), failed=failed)


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
