"""Queries of the catalog. Each takes a connection in a transaction, and returns values instead of rows."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import rows
from ckptstore.catalog.any_of import any_of, one_of
from ckptstore.catalog.tables import (
    FILES,
    FILES_OF_LAUNCHES,
    IS_THERE,
    UtcDateTime,
    checkpoints,
    copies,
    endings,
    forgotten,
    launches,
    outcomes,
    renamed,
    resolutions,
    runs,
    saves,
    sources,
    unplaced,
)
from ckptstore.core import replicas
from ckptstore.core.events import TrainingEnded, later
from ckptstore.core.groups import grouped
from ckptstore.core.limits import HIGHEST
from ckptstore.core.model import (
    SCANNED,
    Announced,
    Checkpoint,
    Content,
    FileState,
    Grade,
    Initial,
    Kind,
    Launch,
    LaunchKey,
    LoadResult,
    PassedOver,
    Rule,
    Source,
    Unplaced,
    launch_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime


GIVEN_UP = sa.select(forgotten.c.run_id).where(
    forgotten.c.forgotten,
    ~sa.exists().where(launches.c.run_id == forgotten.c.run_id, ~launches.c.name.startswith(SCANNED)),
)
"""The forgotten runs that were only scanned. A scan may record their files for another run that the user names."""

_SAVES_ASKED = 4  # one for each kind: then all saves of the newest step are among them


class Called(NamedTuple):
    """A run by its names: `first` is the one in its events and ids, `name` the present one."""

    id: int
    first: str
    name: str
    forgotten: bool


def run_id(connection: sa.Connection, name: str) -> int | None:
    """The id of the run with this first or present name; None if there is none."""
    return connection.execute(_RUN_ID, {"own_name": name}).scalar()


def called(connection: sa.Connection, name: str) -> Called | None:
    """The run with this first or present name; None if there is none."""
    return next(iter(every_called(connection, _CALLED_BY_NAME, own_name=name)), None)


def every_called(connection: sa.Connection, asked: sa.Select[Any] | None = None, **of: str) -> list[Called]:
    """All runs by their names (or those `asked` for), forgotten ones too."""
    found = connection.execute(_CALLED_BY_ORDER if asked is None else asked, of)
    return [Called(row.id, row.first, row.renamed or row.first, bool(row.forgotten)) for row in found]


def renamed_to(connection: sa.Connection, name: str) -> list[str]:
    """The first names of the runs that were renamed to `name`."""
    return list(connection.execute(_RENAMED_TO, {"own_name": name}).scalars())


def names_of_runs(connection: sa.Connection) -> dict[int, str]:
    """The present name of each run, by its id; forgotten runs are left out."""
    return {each.id: each.name for each in every_called(connection) if not each.forgotten}


def run_names(connection: sa.Connection) -> list[str]:
    """The present names of all runs, sorted; forgotten runs are left out."""
    return sorted(names_of_runs(connection).values())


def given_up(connection: sa.Connection) -> set[str]:
    """The first names of the runs in `GIVEN_UP`."""
    return set(connection.execute(_GIVEN_UP_NAMES).scalars())


def first_names(connection: sa.Connection) -> frozenset[str]:
    """The first names of all runs."""
    return frozenset(connection.execute(_FIRST_NAMES).scalars())


def lock_run(connection: sa.Connection, run: int) -> None:
    """Lock the run until the transaction ends. SQLite has one writer at a time anyway.

    Rows that refer to the run can be added by others: a rank that records holds the lock of its path, and the holder of
    this lock may wait for that.
    """
    connection.execute(_LOCK_RUN, {"own_run": run})


def next_moment(connection: sa.Connection, run: str, now: datetime) -> datetime:
    """The moment of a launch that begins now: later than all others of its run, even if clocks of hosts differ.

    Locks the run: no other process begins a launch of it before the transaction ends.
    """
    known = run_id(connection, run)
    if known is None:
        return now
    lock_run(connection, known)
    return later(now, connection.execute(_NEWEST_MOMENT, {"own_run": known}).scalar())


def versions_of(connection: sa.Connection, ids: Sequence[str]) -> dict[str, str]:
    """The versions of these records, by id."""
    return {row[0]: row[1] for row in connection.execute(_VERSIONS_OF, {"own_ids": list(ids)})}


def owners_of(connection: sa.Connection, name: str) -> set[int]:
    """The owners of the launches of a run, by the run's first name."""
    return set(connection.execute(_OWNERS_OF, {"own_name": name}).scalars())


def launches_of(connection: sa.Connection, run: int) -> list[Launch]:
    """The launches of a run, oldest first."""
    return launches_of_runs(connection, [run]).get(run, [])


def launches_of_runs(connection: sa.Connection, ids: Sequence[int]) -> dict[int, list[Launch]]:
    """The launches of each of these runs, oldest first; runs without launches are left out."""
    return grouped((row.run_id, _launch(row)) for row in connection.execute(_LAUNCHES_OF_RUNS, {"own_runs": list(ids)}))


def launch(connection: sa.Connection, key: LaunchKey) -> Launch | None:
    """One launch, of any run."""
    row = connection.execute(_LAUNCH_OF_KEY, {"own_launch": key}).one_or_none()
    return None if row is None else _launch(row)


def has_saved(connection: sa.Connection, key: LaunchKey, rank: int) -> bool:
    """Whether a rank has registered anything in a launch."""
    return connection.execute(_HAS_SAVED, {"own_launch": key, "own_rank": rank}).first() is not None


def first_saves(connection: sa.Connection, run: int) -> dict[str, int | None]:
    """The step of the first save after step 0 of each launch of a run; launches without one are left out.

    None for a launch that never finished a file.
    """
    return first_saves_of_runs(connection, [run]).get(run, {})


def first_saves_of_runs(connection: sa.Connection, ids: Sequence[int]) -> dict[int, dict[str, int | None]]:
    """The same for each of these runs; runs without saves are left out."""
    found: dict[int, dict[str, int | None]] = {}
    for run, launch_id, step, known in connection.execute(_FIRST_SAVES_OF_RUNS, {"own_runs": list(ids)}):
        if step is not None:
            found.setdefault(run, {})[launch_id] = None if known is None else step
    return found


def unplaced_of(connection: sa.Connection, run: int) -> list[Unplaced]:
    """The files of a run that a scan could not place and that still have no complete record, newest first."""
    return [Unplaced(*row) for row in connection.execute(_UNPLACED_OF, {"own_run": run})]


def newest_step(connection: sa.Connection, key: LaunchKey, *, below: int | None, at_most: int | None) -> int | None:
    """The highest step that a launch has a save of, within the bounds (None: none)."""
    last = min(HIGHEST if below is None else below - 1, HIGHEST if at_most is None else at_most)
    return connection.execute(_NEWEST_STEP, {"own_launch": key, "own_step": last}).scalar()


def steps_of(connection: sa.Connection, run: int) -> set[tuple[str, int]]:
    """Every launch and step of a run that has a save. If all its files have other records by now, it has none."""
    return set(kinds_beyond(connection, run, 0))


def kinds_beyond(connection: sa.Connection, run: int, global_step: int) -> dict[tuple[str, int], set[Kind]]:
    """The kinds of every save of a run after a step, and of every save at step 0, by launch and step."""
    found: dict[tuple[str, int], set[Kind]] = {}
    for launch_id, step, kind in connection.execute(_KINDS_BEYOND, {"own_run": run, "own_step": global_step}):
        found.setdefault((launch_id, step), set()).add(Kind(kind))
    return found


def metrics_of(connection: sa.Connection, run: int) -> dict[tuple[str, int], list[Mapping[str, float]]]:
    """The metrics of the files of a run that have any, by launch and step: one mapping for each file."""
    found = connection.execute(_METRICS_OF, {"own_run": run})
    return grouped(((launch_id, step), json.loads(metrics)) for launch_id, step, metrics in found)


def files_at(connection: sa.Connection, launch: Launch, global_step: int) -> tuple[Checkpoint, ...]:
    """Every file of one launch and step; records of paths that files have left are left out."""
    found = connection.execute(_FILES_AT, {"own_launch": launch.key, "own_step": global_step})
    return rows.files_of_state(found, launch, global_step)


def files_by_id(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Checkpoint]:
    """These files, by id."""
    if not ids:
        return {}
    return {file.id: file for file in rows.files(connection.execute(_FILES_BY_ID, {"own_ids": list(ids)}))}


def files_of(connection: sa.Connection, run: int, *, step: int | None = None) -> list[Checkpoint]:
    """Every file of a run, or of one step of it: newest launch first, then newest step, then by rank."""
    query = rows.FILE_QUERY.where(launches.c.run_id == run)
    if step is not None:
        query = query.where(saves.c.global_step == step)
    order = (launches.c.launch_order.desc(), saves.c.global_step.desc(), saves.c.kind, checkpoints.c.rank)
    return list(rows.files(connection.execute(query.order_by(*order, checkpoints.c.path))))


def consistent_files(connection: sa.Connection, key: LaunchKey) -> list[Checkpoint]:
    """The files of a launch whose step has the grade `consistent`."""
    query = rows.FILE_QUERY.where(launches.c.id == key, checkpoints.c.grade == Grade.CONSISTENT.value)
    return list(rows.files(connection.execute(query)))


def files_to_judge(connection: sa.Connection, run: int, others: Sequence[str] = ()) -> list[Checkpoint]:
    """All files, gone ones too, of the states of a run that have a file left. States without one are left out.

    `others` are the ids of more files that count as there, whatever their state.
    """
    there = (
        sa.select(saves.c.launch_id, saves.c.global_step)
        .distinct()
        .join(launches)
        .join(checkpoints)
        .where(launches.c.run_id == run, IS_THERE | any_of(checkpoints.c.id, "own_ids") if others else IS_THERE)
        .subquery()
    )
    is_of = (there.c.launch_id == saves.c.launch_id) & (there.c.global_step == saves.c.global_step)
    query = rows.FILE_QUERY.join(there, is_of).where(checkpoints.c.state != FileState.MOVED.value)
    return list(rows.files(connection.execute(query, {"own_ids": list(others)} if others else {})))


def files_at_paths(connection: sa.Connection, paths: Sequence[str]) -> dict[str, list[Checkpoint]]:
    """All records of these paths; one path may have been written at several steps."""
    found = rows.files(connection.execute(_FILES_AT_PATHS, {"own_paths": list(paths)})) if paths else ()
    return grouped((file.path, file) for file in found)


def directories_of(connection: sa.Connection, run: int) -> set[str]:
    """The directories that a run's ranks save to, and those of its files."""
    parents = {path.rpartition("/")[0] for path, _ in recorded_paths(connection, run)}
    return set(connection.execute(_DIRECTORIES_OF, {"own_run": run}).scalars()) | parents


def recorded_paths(connection: sa.Connection, run: int, *, with_gone: bool = True) -> list[tuple[str, str]]:
    """Every path that was recorded of a run, with the identity of its directory (empty: not known).

    `with_gone` False leaves out files that are missing, or elsewhere now: in a copied directory, all are.
    """
    are_gone = one_of(checkpoints.c.state, FileState.MISSING.value, FileState.MOVED.value)
    query = _RECORDED_PATHS if with_gone else _RECORDED_PATHS.where(sa.not_(are_gone))
    found = rows.many(connection.execute(query, {"own_run": run}))
    return [(path, identity or "") for path, identity in found]


def announced(connection: sa.Connection, run: str, directory: str) -> set[str]:
    """The identities that the directory at a path had when ranks of a run, by its first name, announced it."""
    return set(connection.execute(_ANNOUNCED, {"own_name": run, "own_directory": directory}).scalars())


def lag(connection: sa.Connection, launch: Launch) -> int:
    """The number of skipped updates: by how much the optimizer's counter is behind the global step; 0 if unknown.

    By the newest saves of the launch, else by the state that it resumed from, counted in the launch's own steps.
    """
    beyond = (launch.start_step or 0) - (launch.parent_step or 0)
    for of_launch, step, shift in ((launch.id, None, 0), (launch.parent, launch.parent_step, beyond)):
        if of_launch is None:
            continue
        of = saves.c.launch_id == launch_key(launch.run, of_launch)
        of = of if step is None else of & (saves.c.global_step == step)
        newest = sa.select(saves.c.id, saves.c.global_step).where(of).order_by(saves.c.global_step.desc())
        newest_ones = newest.limit(_SAVES_ASKED).subquery()
        query = sa.select(newest_ones.c.global_step, checkpoints.c.optimizer_step)
        query = query.join(checkpoints, checkpoints.c.save_id == newest_ones.c.id)
        found = connection.execute(query.where(checkpoints.c.optimizer_step.is_not(None))).all()
        if found:
            at, counter = max(found, key=lambda row: row[0])
            return int(at - counter) + shift
    return 0


class Decision(NamedTuple):
    """Where a launch starts, as it is stored: `parent` is None for a fresh start, `plan` has (rank, checkpoint id)."""

    parent: tuple[LaunchKey, int] | None
    plan: list[tuple[int, str]]
    passed: tuple[PassedOver, ...]
    at: datetime


def resolution(connection: sa.Connection, key: LaunchKey) -> Decision | None:
    """Where a launch starts; None if that was not decided."""
    row = connection.execute(_RESOLUTION, {"own_launch": key}).one_or_none()
    if row is None:
        return None
    parent = None if row.parent_launch_id is None else (LaunchKey(row.parent_launch_id), row.parent_step)
    plan = [(int(rank), str(file)) for rank, file in row.plan]
    return Decision(parent, plan, _passed(row.passed), row.created_at)


def _passed(told: Any) -> tuple[PassedOver, ...]:
    return tuple(PassedOver(launch, step, Rule(rule), detail) for launch, step, rule, detail in told or ())


def passed_over_by(connection: sa.Connection, run: int) -> dict[str, tuple[PassedOver, ...]]:
    """The newer states that each launch of a run passed over at its start, by its id; undecided ones are left out."""
    joined = launches.join(resolutions, resolutions.c.launch_id == launches.c.id)
    query = sa.select(launches.c.name, resolutions.c.passed).select_from(joined).where(launches.c.run_id == run)
    return {name: _passed(told) for name, told in connection.execute(query)}


def failed_loads(connection: sa.Connection, run: int) -> dict[str, str]:
    """Why a launch could not load a file, by the file's id; left out if a later launch loaded that state and saved."""
    failed = connection.execute(_FAILED_LOADS, {"own_run": run}).all()
    if not failed:  # of nearly all runs
        return {}
    # The launch that loaded a state last, and saved. What failed in this launch counts: other ranks saved before.
    loaded = {tuple(state): order for *state, order in connection.execute(_LOADED, {"own_run": run})}
    return {
        row.checkpoint_id: f"{row.detail} (rank {row.rank} of launch {row.name})"
        for row in failed
        if row.launch_order >= loaded.get((row.parent_launch_id, row.parent_step), 0)
    }


def sources_of(connection: sa.Connection, run: int, directories: Iterable[str] | None = None) -> list[Source]:
    """Where the ranks of a run save, newest launch first; or what they save to these directories."""
    if directories is None:
        return _sources(connection.execute(_SOURCES_OF, {"own_run": run}))
    return _sources(connection.execute(_SOURCES_OF_RUN_IN, {"own_run": run, "own_directories": list(directories)}))


def announced_by(connection: sa.Connection, run: int) -> set[Announced]:
    """The directories that the ranks of a run ever announced: each once, however many launches did."""
    found = connection.execute(_ANNOUNCED_BY, {"own_run": run})
    return {Announced(directory, identity or "", host) for directory, identity, host in found}


def sources_beside(connection: sa.Connection, run: int, directories: Iterable[str]) -> list[Source]:
    """Where the ranks of other runs save, if that is in one of these directories."""
    return _sources(connection.execute(_SOURCES_BESIDE, {"own_run": run, "own_directories": list(directories)}))


def sources_in(connection: sa.Connection, directories: Iterable[str]) -> list[Source]:
    """What the ranks of any run save to these directories."""
    return _sources(connection.execute(_SOURCES_IN, {"own_directories": list(directories)}))


def sources_of_launches(connection: sa.Connection, keys: Iterable[LaunchKey]) -> list[Source]:
    """Where the ranks of these launches save."""
    return _sources(connection.execute(_SOURCES_OF_LAUNCHES, {"own_launches": list(keys)}))


def saving(connection: sa.Connection, run: int) -> set[LaunchKey]:
    """The launches of a run of which a rank announced where it saves."""
    return set(connection.execute(_SAVING, {"own_run": run}).scalars())


def _sources(found: sa.Result[Any]) -> list[Source]:
    kinds = {kind.value: kind for kind in Kind}
    contents = {content.value: content for content in Content}
    names = cache(_names)  # most are alike
    return [
        Source(run, name, rank, at, kinds[kind], prefix, begin, names(before), host, contents.get(content), id_ or "")
        for run, name, rank, at, kind, prefix, begin, before, host, content, id_ in rows.many(found)
    ]


def _names(text: str) -> frozenset[str]:
    return frozenset() if text == "[]" else frozenset(json.loads(text))


def hosts_of(connection: sa.Connection, key: LaunchKey) -> dict[int, str]:
    """On which host each rank of a launch ran, as far as recorded."""
    query = sa.select(sources.c.rank, sources.c.host).distinct()
    found = connection.execute(query.where(sources.c.launch_id == key, sources.c.host.is_not(None)))
    return {row.rank: row.host for row in found}


def hosts_of_run(connection: sa.Connection, run: int) -> dict[str, tuple[str, ...]]:
    """The hosts that the ranks of each launch of a run ran on, as far as recorded, by the launch's id."""
    joined = launches.join(sources, sources.c.launch_id == launches.c.id)
    query = sa.select(launches.c.name, sources.c.host).distinct().select_from(joined).order_by(sources.c.host)
    found = connection.execute(query.where(launches.c.run_id == run, sources.c.host.is_not(None)))
    return {launch_id: tuple(hosts) for launch_id, hosts in grouped(found).items()}


def endings_of(
    connection: sa.Connection, keys: Iterable[LaunchKey], ranks: Iterable[int] | None = None
) -> Mapping[tuple[LaunchKey, int], TrainingEnded]:
    """How training ended, by launch and rank; `ranks` are those asked for (None: all)."""
    query = sa.select(endings, launches.c.name, runs.c.name.label("run")).select_from(endings.join(launches).join(runs))
    query = query.where(any_of(endings.c.launch_id, "own_launches"))
    asked: dict[str, list[Any]] = {"own_launches": list(keys)}
    if ranks is not None:
        query, asked["own_ranks"] = query.where(any_of(endings.c.rank, "own_ranks")), list(ranks)
    return {
        (row.launch_id, row.rank): TrainingEnded(
            row.run,
            row.name,
            row.rank,
            row.global_step,
            row.optimizer_step,
            row.error,
            row.quarantine or "",
            row.created_at,
        )
        for row in connection.execute(query, asked)
    }


class Ended(NamedTuple):
    """The ranks of a launch whose training ended alike (`error` None: by itself): the highest step, the last moment."""

    error: str | None
    global_step: int
    at: datetime


def ends_of_run(connection: sa.Connection, run: int) -> dict[str, list[Ended]]:
    """How training ended on the ranks of each launch of a run, by the launch's id: an entry for each kind of end."""
    return grouped((launch, Ended(*told)) for launch, *told in connection.execute(_ENDS_OF_RUN, {"own_run": run}))


_PARENTS = launches.alias("parents")


def _launch_query() -> sa.Select[Any]:
    joined = launches.join(runs).outerjoin(resolutions, resolutions.c.launch_id == launches.c.id)
    joined = joined.outerjoin(_PARENTS, _PARENTS.c.id == resolutions.c.parent_launch_id)
    # A scan gives parts launches of their own: any one file shows whether a launch has parts.
    holds = sa.select(checkpoints.c.content).select_from(FILES).where(saves.c.launch_id == launches.c.id).limit(1)
    return sa.select(
        launches,
        holds.correlate(launches).scalar_subquery().label("holds"),
        sa.exists().where(copies.c.launch_id == launches.c.id).label("has_copies"),
        runs.c.name.label("run"),
        resolutions.c.launch_id.label("decided"),
        _PARENTS.c.name.label("parent"),
        resolutions.c.parent_step,
        resolutions.c.branched,
        resolutions.c.start_step,
        resolutions.c.initial,
    ).select_from(joined)


# Statements that every record or start needs are built once: building one takes longer than running it.

_RUN = sa.bindparam("own_run", type_=sa.Integer)
_STEP = sa.bindparam("own_step", type_=sa.BigInteger)
_LAUNCH = sa.bindparam("own_launch", type_=sa.String)

_NAME = sa.bindparam("own_name", type_=sa.String)
_IN_DIRECTORY = sources.c.directory == sa.bindparam("own_directory", type_=sa.String)
_FIRST_NAMES = sa.select(runs.c.name)
_NEWEST_MOMENT = sa.select(sa.func.max(launches.c.created_at)).where(launches.c.run_id == _RUN)
_VERSIONS_OF = sa.select(checkpoints.c.id, checkpoints.c.version).where(any_of(checkpoints.c.id, "own_ids"))
_OWNERS_OF = (
    sa.select(launches.c.owner).distinct().join_from(runs, launches).where(runs.c.name == sa.bindparam("own_name"))
)
_KINDS_OF = sa.select(launches.c.name, saves.c.global_step, saves.c.kind).select_from(saves.join(launches))
IS_HELD = sa.exists().where(checkpoints.c.save_id == saves.c.id, checkpoints.c.state != FileState.MOVED.value)
"""Whether a save has a file. Its files may all have other records: of other steps, or of the launch that saved them."""

_KINDS_OF = _KINDS_OF.where(launches.c.run_id == _RUN, IS_HELD)
_KINDS_BEYOND = sa.union_all(_KINDS_OF.where(saves.c.global_step > _STEP), _KINDS_OF.where(saves.c.global_step == 0))
_METRICS = sa.cast(checkpoints.c.metrics, sa.Text)
_METRICS_OF = (
    sa.select(launches.c.name, saves.c.global_step, _METRICS)
    .select_from(FILES_OF_LAUNCHES)
    .where(launches.c.run_id == _RUN, saves.c.global_step > 0, _METRICS != "{}")
    .where(checkpoints.c.content != Content.WEIGHTS.value)
)
_FILES_BY_ID = rows.FILE_QUERY.where(any_of(checkpoints.c.id, "own_ids"))
_FILES_AT_PATHS = rows.FILE_QUERY.where(any_of(checkpoints.c.path, "own_paths"))
_DIRECTORIES_OF = sa.select(sources.c.directory).distinct().join(launches).where(launches.c.run_id == _RUN)


def _id_of(name: sa.ColumnElement[str]) -> sa.ColumnElement[int]:
    """The id of the run with a name; NULL if there is none.

    Two users may give two runs the same name without knowing of each other. Then it is the name of the run that has it
    as its first name, else of the first run by first names. The other run is called by its first name.
    """
    of, new = runs.alias("named"), renamed.alias("renamed_to_it")
    first = sa.select(of.c.id).where(of.c.name == name)
    later = sa.select(of.c.id).join(new, new.c.run_id == of.c.id).where(new.c.name == name).order_by(of.c.name).limit(1)
    return sa.func.coalesce(*(each.correlate(renamed).scalar_subquery() for each in (first, later)))


_RUN_ID = sa.select(_id_of(_NAME))
_RENAMED_TO = (
    sa.select(runs.c.name).select_from(renamed.join(runs)).where(renamed.c.name == _NAME, runs.c.name != _NAME)
)
_HAS_NEW_NAME = (renamed.c.run_id == runs.c.id) & (_id_of(renamed.c.name) == runs.c.id)
_CALLED = sa.select(
    runs.c.id, runs.c.name.label("first"), renamed.c.name.label("renamed"), forgotten.c.forgotten
).select_from(runs.outerjoin(renamed, _HAS_NEW_NAME).outerjoin(forgotten, forgotten.c.run_id == runs.c.id))
_CALLED_BY_ORDER = _CALLED.order_by(runs.c.name)
_CALLED_BY_NAME = _CALLED.where(runs.c.id == _RUN_ID.scalar_subquery())
_GIVEN_UP_NAMES = sa.select(runs.c.name).where(runs.c.id.in_(GIVEN_UP))
_LAUNCHES = _launch_query()
_LAUNCH_OF_KEY = _LAUNCHES.where(launches.c.id == _LAUNCH)
_OF_RUNS = any_of(launches.c.run_id, "own_runs")
_LAUNCHES_OF_RUNS = _LAUNCHES.where(_OF_RUNS).order_by(launches.c.run_id, launches.c.launch_order)
_RESOLUTION = sa.select(resolutions).where(resolutions.c.launch_id == _LAUNCH)
_UNPLACED_OF = (
    sa.select(*(unplaced.c[each.name] for each in fields(Unplaced)))
    .where(
        unplaced.c.run_id == _RUN,
        ~sa.exists().where(checkpoints.c.path == unplaced.c.path, checkpoints.c.state == FileState.COMPLETE.value),
    )
    .order_by(unplaced.c.mtime_ns.desc(), unplaced.c.path)
)
_NEWEST_STEP = (
    sa.select(saves.c.global_step)
    .where(saves.c.launch_id == _LAUNCH, saves.c.global_step <= _STEP, IS_HELD)
    .order_by(saves.c.global_step.desc())
    .limit(1)
)
_FILES_AT = rows.STATE_QUERY.where(
    saves.c.launch_id == _LAUNCH,
    saves.c.global_step == _STEP,
    checkpoints.c.state != FileState.MOVED.value,
)
_STATE_LOADED = resolutions.c.parent_launch_id, resolutions.c.parent_step
_STARTED = launches.join(resolutions, resolutions.c.launch_id == launches.c.id)
_FAILED_LOADS = (
    sa.select(outcomes.c.checkpoint_id, outcomes.c.detail, outcomes.c.rank, launches.c.name, launches.c.launch_order)
    .add_columns(*_STATE_LOADED)
    .select_from(_STARTED.join(outcomes, outcomes.c.launch_id == launches.c.id))
    .where(
        launches.c.run_id == _RUN,
        outcomes.c.outcome == LoadResult.FAILED.value,
        outcomes.c.checkpoint_id.is_not(None),
    )
    .order_by(launches.c.launch_order, outcomes.c.rank)
)
_LOADED = (
    sa.select(*_STATE_LOADED, sa.func.max(launches.c.launch_order))
    .select_from(_STARTED)
    .where(
        launches.c.run_id == _RUN,
        sa.exists().where(outcomes.c.launch_id == launches.c.id, outcomes.c.outcome == LoadResult.SAVED.value),
    )
    .group_by(*_STATE_LOADED)
)
_SOURCES = (
    sa.select(
        runs.c.name,
        launches.c.name,
        sources.c.rank,
        sources.c.directory,
        sources.c.kind,
        sources.c.prefix,
        sources.c.breakpoint_prefix,
        sa.cast(sources.c.names_before, sa.Text),
        sources.c.host,
        sources.c.content,
        sources.c.directory_id,
    )
    .select_from(sources.join(launches).join(runs))
    .order_by(launches.c.launch_order.desc(), sources.c.rank)
)
_SOURCES_OF = _SOURCES.where(launches.c.run_id == _RUN)
_SOURCES_IN = _SOURCES.where(any_of(sources.c.directory, "own_directories"))
# As a sum, so that SQLite takes the index of the directories, not that of the run.
_SOURCES_OF_RUN_IN = _SOURCES_IN.where(launches.c.run_id + sa.literal_column("0") == _RUN)
_SOURCES_BESIDE = _SOURCES_IN.where(launches.c.run_id != _RUN)
_SOURCES_OF_LAUNCHES = _SOURCES.where(any_of(sources.c.launch_id, "own_launches"))
_ENDS_OF_RUN = (
    sa.select(
        launches.c.name,
        endings.c.error,
        sa.func.max(endings.c.global_step),
        sa.func.max(endings.c.created_at, type_=UtcDateTime),
    )
    .join_from(launches, endings)
    .where(launches.c.run_id == _RUN)
    .group_by(launches.c.id, launches.c.name, endings.c.error)
)
_SAVING = sa.select(launches.c.id).where(
    launches.c.run_id == _RUN, sa.exists().where(sources.c.launch_id == launches.c.id)
)


def _first_save(*finished: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    """The step of a launch's first save. As a subquery for each launch, the index finds it among any number of saves.

    Files that a scan found and that were registered later do not count: they are of the launch that saved them.
    """
    return (
        sa.select(saves.c.global_step)
        .select_from(FILES)
        .where(saves.c.launch_id == launches.c.id, saves.c.global_step > 0)
        .where(checkpoints.c.state != FileState.MOVED.value, *finished)
        .order_by(saves.c.global_step)
        .limit(1)
        .correlate(launches)
        .scalar_subquery()
    )


_LOCK_RUN = sa.select(runs.c.id).where(runs.c.id == _RUN).with_for_update(key_share=True)
_HAS_SAVED = (
    sa.select(checkpoints.c.id)
    .join(saves)
    .where(saves.c.launch_id == _LAUNCH, checkpoints.c.rank == sa.bindparam("own_rank", type_=sa.Integer))
    .limit(1)
)
_RECORDED_PATHS = (
    sa.select(checkpoints.c.path, checkpoints.c.directory_id)
    .select_from(FILES_OF_LAUNCHES)
    .where(launches.c.run_id == _RUN)
)
_ANNOUNCED = (
    sa.select(sources.c.directory_id)
    .distinct()
    .select_from(sources.join(launches).join(runs))
    .where(runs.c.name == _NAME, _IN_DIRECTORY, sources.c.directory_id.is_not(None))
)
_ANNOUNCED_BY = (
    sa.select(sources.c.directory, sources.c.directory_id, sources.c.host)
    .distinct()
    .join(launches)
    .where(launches.c.run_id == _RUN)
)
_FIRST_SAVES_OF_RUNS = sa.select(
    launches.c.run_id, launches.c.name, _first_save(), _first_save(checkpoints.c.size.is_not(None))
).where(_OF_RUNS)


def _launch(row: Any) -> Launch:
    return Launch(
        id=row.name,
        run=row.run,
        order=row.launch_order,
        world_size=row.world_size,
        layout=replicas.from_json(row.layout),
        steps_per_epoch=row.steps_per_epoch,
        batch_size=row.batch_size,
        shards=row.shards,
        decided=row.decided is not None,
        parent=row.parent,
        parent_step=row.parent_step,
        branched=bool(row.branched),
        foreign=row.holds == Content.PART.value and row.name.startswith(SCANNED),
        start_step=row.start_step,
        initial=Initial(*row.initial) if row.initial else None,
        created_at=row.created_at,
        owner=row.owner,
        has_copies=bool(row.has_copies),
    )


def are_as_chosen(connection: sa.Connection, files: Iterable[Checkpoint]) -> bool:
    """Whether each of these files still has the state that it had when it was read."""
    chosen = {file.id: file.state.value for file in files}
    return {row[0]: row[1] for row in connection.execute(_STATES_OF, {"own_ids": list(chosen)})} == chosen


_STATES_OF = sa.select(checkpoints.c.id, checkpoints.c.state).where(any_of(checkpoints.c.id, "own_ids"))
