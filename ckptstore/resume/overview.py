"""Lists runs, the saves of a run, and the files of a save."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.catalog import gauges, leases, reads, recent, tallies, user_events
from ckptstore.catalog.copies import ranks_in_tiers
from ckptstore.catalog.engine import clock
from ckptstore.catalog.protection import began_from
from ckptstore.catalog.runs import called_in, find_run, run_names
from ckptstore.core import validate
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.model import BRANCH, IMPORTED, SCANNED, Content, FileState, Kind
from ckptstore.errors import UnknownStepError, UsageError
from ckptstore.outside import utc_now
from ckptstore.resume.lineage import lineage
from ckptstore.resume.liveness import (
    NEVER_SAVED,
    SILENT,
    TRAINING,
    course,
    is_emptied,
    is_of_last_day,
    restart_loop,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.leases import Sign
    from ckptstore.catalog.recent import Waiting
    from ckptstore.catalog.tallies import Tally
    from ckptstore.core.model import Checkpoint, Grade, Launch, Unplaced
    from ckptstore.resume.lineage import Segment

_LOOKED_AT = 3
"""So many of the newest saves of a launch are looked at first: while one is written, the one before it is whole."""

_SAVING_LAUNCHES = 2
_FIRST = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class SaveRow:
    """One save as `list` shows it.

    - `restorable` is judged by the catalog alone; `resolve` looks at the disk too. `by_replicas`: it is restorable,
      though not every rank has a complete file of its step.
    - `abandoned`: the run went back to an older state and went on from there.
    - `tags` are the names of its step, `quarantine` the fault of a state with complete files (empty: none).
    - `metrics` are means over the ranks. `grade` is how sure its step is if a scan found it (None: it was registered),
      `doubt` the open question about it; both are of rank 0.
    - `began` are the other runs that began from its state. `tiers` maps each tier with copies to how many ranks have
      one there.
    """

    run: str
    launch: Launch
    tally: Tally
    restorable: bool
    abandoned: bool
    pinned: bool
    tags: tuple[str, ...]
    quarantine: str
    metrics: Mapping[str, float]
    grade: Grade | None
    doubt: str
    by_replicas: bool
    began: tuple[str, ...]
    tiers: Mapping[str, int]

    @property
    def kind(self) -> Kind:
        """Why it was written."""
        return self.tally.kind

    @property
    def global_step(self) -> int:
        """Batches consumed since the run began."""
        return self.tally.global_step

    @property
    def ranks(self) -> int:
        """How many ranks have an existing file of it."""
        return self.tally.ranks

    @property
    def bytes(self) -> int:
        """The size of these files."""
        return self.tally.bytes

    @property
    def created_at(self) -> datetime:
        """When the first of its files was recorded."""
        return self.tally.created_at


@dataclass(frozen=True)
class RunRow:
    """One run as `runs` shows it: the number of launches, the newest save, the newest restorable one, its bytes.

    `status` is its present activity (`resume.liveness`), `launches_last_day` the number of launches that began within a
    day, `bytes` the size of its states, `trash_bytes` the size of its trash. A branch that `resolve --branch` records
    does not count as a launch. `only_copies`: no state can be restored from disks, but tiers have copies.
    """

    run: str
    launches: int
    last: SaveRow | None
    newest_restorable: SaveRow | None
    bytes: int
    status: str
    launches_last_day: int
    trash_bytes: int
    only_copies: bool = False


def runs(database: Database) -> list[RunRow]:
    """Every run, by name."""
    with database.read() as connection:
        names = reads.names_of_runs(connection)
        rows = _run_rows(connection, names)
    return sorted(rows, key=lambda row: row.run)


def saves(
    database: Database,
    run: str | None,
    *,
    step: int | None = None,
    kind: str | None = None,
    since: timedelta | None = None,
    limit: int | None = None,
) -> list[SaveRow]:
    """The saves of a run, or of all runs, that have a file on the disk or in a tier, by launch and step, newest first.

    `step` selects one step, `since` the saves of the last so much time; `limit` is the largest number of saves.
    """
    _check(kind, limit)
    with database.read() as connection:
        names = _named_runs(connection, database, run)
        known = _known(connection, list(names))
        found = tallies.tallies(connection, list(names), step)
        rows = _save_rows(connection, known, names, found)
    rows.sort(key=lambda row: row.run)  # within a run they are sorted already
    after = _after(since)
    there = [row for row in rows if row.tally.files or row.tiers]
    return [row for row in there if kind in (None, row.kind.value) and row.created_at >= after][:limit]


def files(
    database: Database,
    run: str | None,
    *,
    kind: str | None,
    since: timedelta | None,
    limit: int | None,
) -> list[Checkpoint]:
    """Every file ever recorded of a run, or of all runs, with its present state. Filters are those of `saves`."""
    _check(kind, limit)
    found: list[Checkpoint] = []
    for name in run_names(database, run):
        run_id = find_run(database, name)
        with database.read() as connection:
            found += _named(name, reads.files_of(connection, run_id))
    after = _after(since)
    of_kind = (file for file in found if kind in (None, file.kind.value))
    return [file for file in of_kind if since is None or (file.created_at or after) >= after][:limit]


def _after(since: timedelta | None) -> datetime:
    if since is not None and not isinstance(since, timedelta):
        raise UsageError(f"since={since!r} is no timedelta", "give one, as datetime.timedelta(days=1)")
    try:
        return _FIRST if since is None else utc_now() - since
    except OverflowError:  # before the year 1
        return _FIRST


def show(database: Database, run: str, step: int) -> list[Checkpoint]:
    """Every file of one step of a run. Raises `UsageError` if there is none."""
    step = validate.step_of(step)
    run_id = find_run(database, run)
    with database.read() as connection:
        found = reads.files_of(connection, run_id, step=step)
    if not found:
        raise no_such_step(run, step)
    return _named(run, found)


def unplaced(database: Database, run: str) -> list[Unplaced]:
    """The files of a run that a scan could not place and that have no record since, the one written last first."""
    run_id = find_run(database, run)
    with database.read() as connection:
        return reads.unplaced_of(connection, run_id)


def waiting(database: Database, run: str) -> list[Waiting]:
    """The trash of a run, an entry for each gc, oldest first."""
    run_id = find_run(database, run)
    with database.read() as connection:
        return recent.waiting(connection, run_id)


def _named(run: str, found: list[Checkpoint]) -> list[Checkpoint]:
    """These files under the run's present name: it may have been renamed since."""
    return found if not found or found[0].run == run else [replace(file, run=run) for file in found]


def _check(kind: str | None, limit: int | None) -> None:
    if limit is not None:
        validate.number("limit", limit, "give the largest number of rows")
    if kind is not None and kind not in set(Kind):
        raise UsageError(f"there is no kind {kind!r}", f"use one of: {', '.join(Kind)}")


def no_such_step(run: str, step: int) -> UnknownStepError:
    """The error for a step that the run has no save of."""
    return UnknownStepError(f"run {run!r} has no save of step {step}", f"see: {Command('list', run)}")


def run_row(database: Database, name: str) -> RunRow:
    """One run."""
    with database.read() as connection:
        (row,) = _run_rows(connection, _named_runs(connection, database, name))
    return row


@dataclass(frozen=True)
class SaveDetails:
    """Details of saves, by their ids: rank, state and content of each file, and the seconds of the slowest rank."""

    ranks: Mapping[str, Sequence[tuple[int, FileState, Content]]]
    seconds: Mapping[str, float]


def details(database: Database, rows: Sequence[SaveRow], *, most_files: int) -> SaveDetails:
    """How long saves took, and the files of the first of them, up to `most_files`."""
    chosen: list[str] = []
    for row in rows:
        most_files -= row.launch.world_size
        if most_files < 0:
            break
        chosen.append(row.tally.save_id)
    with database.read() as connection:
        took = gauges.last_saves(connection, [row.tally.save_id for row in rows])
        ranks = tallies.states_of_ranks(connection, chosen)
    return SaveDetails(ranks, {save: each.seconds for save, each in took.items() if each.seconds is not None})


def moments(database: Database, rows: Sequence[RunRow], count: int) -> dict[str, list[datetime]]:
    """When the newest saves of each run were recorded: at most `count`, of the launch that saved last."""
    keys = {row.run: row.last.launch.key for row in rows if row.last}
    with database.read() as connection:
        found = gauges.newest_moments(connection, list(keys.values()), count)
    return {run: found.get(key, []) for run, key in keys.items()}


def hosts(database: Database, run: str, step: int) -> dict[tuple[str, int], str]:
    """The host of each rank that saved a step, by launch and rank, as far as recorded."""
    launches = {file.launch: file.launch_key for file in show(database, run, step)}
    with database.read() as connection:
        found = {launch: reads.hosts_of(connection, key) for launch, key in launches.items()}
    return {(launch, rank): host for launch, ranks in found.items() for rank, host in ranks.items()}


def _named_runs(connection: Connection, database: Database, run: str | None) -> dict[int, str]:
    """The name of this run, or of all runs, by id."""
    if run is None:
        return reads.names_of_runs(connection)
    return {called_in(connection, database, run).id: run}


@dataclass(frozen=True)
class _Known:
    """Facts of several runs. `launches` are by run, oldest first; `parts` is the lineage, by run and launch."""

    launches: Mapping[int, Sequence[Launch]]
    first_saves: Mapping[int, Mapping[str, int | None]]
    parts: Mapping[tuple[int, str], Segment]
    pinned: AbstractSet[tuple[int, int]]
    tags: Mapping[tuple[int, int], tuple[str, ...]]
    began: Mapping[tuple[int, str, int], tuple[str, ...]]


def _known(connection: Connection, ids: Sequence[int]) -> _Known:
    launches = reads.launches_of_runs(connection, ids)
    first_saves = reads.first_saves_of_runs(connection, ids)
    return _Known(
        launches=launches,
        first_saves=first_saves,
        parts={
            (run, part.launch.id): part
            for run, every in launches.items()
            for part in lineage(every, first_saves.get(run, {}))
        },
        pinned=user_events.pins_of_runs(connection, ids),
        tags=user_events.tags_of_runs(connection, ids),
        began=began_from(connection, ids),
    )


def _run_rows(connection: Connection, names: Mapping[int, str]) -> list[RunRow]:
    """Rows of these runs. The number of SQL statements does not depend on the number of runs."""
    ids = list(names)
    known = _known(connection, ids)
    newest = _newest_rows(connection, known, names)
    begun = {run: _begun(known, run, newest[run].last) for run in ids}
    signs = _Signs(
        {sign.key: sign for sign in leases.last_signs(connection, ids).values()},
        gauges.errors_at_end(connection, [each[-1].key for each in begun.values() if each]),
        clock(connection),
    )
    stored, in_trash = gauges.stored_bytes(connection, ids), gauges.trash_bytes(connection, ids)
    return [
        RunRow(
            run=name,
            launches=len(begun[run]),
            last=newest[run].last,
            newest_restorable=newest[run].restorable,
            bytes=stored.get(run, 0),
            status=_status(begun[run], known.first_saves.get(run, {}), newest[run].last, signs),
            launches_last_day=sum(is_of_last_day(launch, signs.now) for launch in begun[run]),
            trash_bytes=in_trash.get(run, 0),
            only_copies=newest[run].only_copies,
        )
        for run, name in names.items()
    ]


def _begun(known: _Known, run: int, last: SaveRow | None) -> list[Launch]:
    """The launches of a run, oldest first, without those that only name a state and those of a scan without files."""
    saved = {*known.first_saves.get(run, ()), last and last.tally.launch}
    every = known.launches.get(run, ())
    return [launch for launch in every if not (launch.id.startswith(BRANCH) or is_emptied(launch, saved))]


class _Newest(NamedTuple):
    """Of a run: the newest save with an existing file, the newest restorable one, and whether only tiers have any."""

    last: SaveRow | None = None
    restorable: SaveRow | None = None
    only_copies: bool = False


def _newest_rows(connection: Connection, known: _Known, names: Mapping[int, str]) -> dict[int, _Newest]:
    """The newest save and the newest restorable one of each run.

    Most runs have both among the newest few saves of their newest launches. Of the other runs all saves are read.
    """
    chosen = {run: _newest_saving(known, run) for run in names}
    keys = [launch.key for launches in chosen.values() for launch in launches]
    newest = gauges.newest_saves(connection, keys, _LOOKED_AT)
    ids: list[str] = []
    are_known = set()
    for run, launches in chosen.items():
        of_run = [newest[launch.key] for launch in launches if launch.key in newest]
        until = next((at for at, saves in enumerate(of_run, 1) if not saves.is_all), len(of_run))
        ids += [save for saves in of_run[:until] for save in saves.ids]
        if len(launches) == len(known.launches.get(run, ())) and all(saves.is_all for saves in of_run):
            are_known.add(run)
    found = _newest_of_each(_save_rows(connection, known, names, tallies.tallies_of(connection, ids)))
    rest = [run for run in names if found.get(run, _Newest()).restorable is None and run not in are_known]
    found |= _newest_of_each(_save_rows(connection, known, names, tallies.tallies(connection, rest)))
    return {run: found.get(run, _Newest()) for run in names}


def _newest_saving(known: _Known, run: int) -> list[Launch]:
    """The newest launches of a run, newest first, up to the second one that has saved."""
    saved = known.first_saves.get(run, {})
    found: list[Launch] = []
    for launch in reversed(known.launches.get(run, ())):
        found.append(launch)
        if sum(each.id in saved for each in found) == _SAVING_LAUNCHES:
            break
    return found


def _newest_of_each(rows: Sequence[SaveRow]) -> dict[int, _Newest]:
    """By run: the newest saves among these `rows`, which are newest first."""
    by_run = grouped((row.tally.run_id, row) for row in rows)
    found = {}
    for run, of_run in by_run.items():
        there = [row for row in of_run if row.tally.files]
        restorable = next((row for row in there if row.restorable and not row.abandoned), None)
        only_copies = restorable is None and any(row.tiers for row in of_run)
        found[run] = _Newest(there[0] if there else None, restorable, only_copies)
    return found


class _Signs(NamedTuple):
    """By launch key: the last sign of life, and the errors that ended training. `now` is by the catalog's clock."""

    last: Mapping[str, Sign]
    errors: Mapping[str, Sequence[str | None]]
    now: datetime


def _status(begun: Sequence[Launch], saved: Mapping[str, int | None], last: SaveRow | None, signs: _Signs) -> str:
    """The status of a run, by the newest of its launches that trained or were about to (`begun`, oldest first)."""
    if not begun:
        return NEVER_SAVED
    newest = begun[-1]
    own = last if last is not None and last.launch.id == newest.id else None
    sign = signs.last.get(newest.key)
    heard = [sign.seen_at] if sign else []
    heard += [own.created_at] if own else [newest.created_at] if newest.created_at else []
    errors = signs.errors.get(newest.key, ())
    has_just_saved = own is not None and own.created_at is not None and signs.now - own.created_at <= SILENT
    goes_on_by_hand = has_just_saved and sign is None and not errors and not newest.id.startswith((SCANNED, IMPORTED))
    found = course(
        errors,
        sign.process if sign else None,
        signs.now - sign.seen_at if sign else None,
        was_asked_to_exit=own is not None and own.kind is Kind.GRACEFUL_EXIT,
    )
    return status(
        newest.id,
        TRAINING if goes_on_by_hand else found,
        loop=restart_loop(begun, saved, errors, signs.now),
        has_saved=bool(saved),
        has_begun=sign is not None or newest.id in saved,
        silent=signs.now - max(heard) if heard else None,
    )


def _save_rows(
    connection: Connection, known: _Known, names: Mapping[int, str], found: Sequence[Tally]
) -> list[SaveRow]:
    """A row for each of these saves, in their order."""
    if not found:
        return []
    launches = {(run, launch.id): launch for run, every in known.launches.items() for launch in every}
    said = tallies.said(connection, [tally.save_id for tally in found])
    nothing = tallies.Said("", {}, None, "")
    whole = _whole(connection, launches, found)
    copied = [tally.save_id for tally in found if launches[tally.run_id, tally.launch].has_copies]
    in_tiers = ranks_in_tiers(connection, copied)
    return [
        SaveRow(
            run=names[tally.run_id],
            launch=launches[tally.run_id, tally.launch],
            tally=tally,
            restorable=whole.get(tally.save_id) is not None,
            by_replicas=whole.get(tally.save_id) is False,
            abandoned=not launches[tally.run_id, tally.launch].foreign
            and _is_abandoned(tally, known.parts.get((tally.run_id, tally.launch))),
            pinned=(tally.run_id, tally.global_step) in known.pinned,
            tags=known.tags.get((tally.run_id, tally.global_step), ()),
            began=known.began.get((tally.run_id, tally.launch, tally.global_step), ()),
            tiers=in_tiers.get(tally.save_id, {}),
            **said.get(tally.save_id, nothing)._asdict(),
        )
        for tally in found
    ]


def _is_abandoned(tally: Tally, part: Segment | None) -> bool:
    return tally.global_step > 0 and not (part is not None and part.has(tally.global_step))


def _whole(
    connection: Connection, launches: Mapping[tuple[int, str], Launch], found: Sequence[Tally]
) -> dict[str, bool]:
    """The saves whose state can be restored, by id: True with a file of every rank, False if replicas stand in.

    Files of every kind count: `found` has all saves of each launch and step.
    """
    whole: dict[str, bool] = {}
    in_part: list[Tally] = []
    broken = tallies.with_lost_parts(connection, [tally.save_id for tally in found if tally.lost_parts])
    for tally in found:
        launch = launches[tally.run_id, tally.launch]
        if tally.global_step == 0 or not tally.files or tally.quarantined or launch.foreign:
            continue
        if tally.save_id in broken:  # no file replaces a part
            continue
        if launch.world_size in (tally.full_ranks, tally.share_ranks):
            whole[tally.save_id] = True
        else:
            in_part.append(tally)
    have: dict[tuple[int, str, int], set[int]] = {_state(tally): set() for tally in in_part}
    states = {tally.save_id: state for tally in found if (state := _state(tally)) in have}
    for save, of_ranks in tallies.states_of_ranks(connection, list(states)).items():
        have[states[save]] |= {rank for rank, *held in of_ranks if held == [FileState.COMPLETE, Content.FULL]}
    for tally in in_part:
        launch, ranks = launches[tally.run_id, tally.launch], have[_state(tally)]
        if launch.layout.covers(ranks, launch.world_size):
            whole[tally.save_id] = len(ranks) == launch.world_size
    return whole


def _state(tally: Tally) -> tuple[int, str, int]:
    return tally.run_id, tally.launch, tally.global_step
