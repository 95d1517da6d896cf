"""Projects events into rows. All facts are written here, from live events, from journals and from scans.

Events may come in any order, in any portions and repeatedly: the rows are the same. Of two events about one thing, the
one with the greater version wins (`core.events`). Every function takes a connection inside a transaction and never
commits.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from typing import TYPE_CHECKING, Any
from zlib import crc32

import sqlalchemy as sa

from ckptstore.catalog import layouts, leases, reads, user_events
from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.tables import (
    IS_REMOVED,
    REMOVED_PATH,
    checkpoints,
    collections,
    copies,
    endings,
    launch_strategies,
    launches,
    outcomes,
    resolutions,
    runs,
    saves,
    sources,
    strategies,
    tiers,
    trash,
    unplaced,
)
from ckptstore.catalog.upserts import insert, insert_if_new, put_newest
from ckptstore.core.events import (
    GENERATION,
    CopyRecorded,
    FileRecorded,
    FilesRemoved,
    FileUnplaced,
    GcEnded,
    LaunchStarted,
    LayoutFileKept,
    LoadOutcome,
    SourceAdded,
    TierDeclared,
    TrainingEnded,
    launch_of,
    version_of,
    version_of_file,
    version_of_user_event,
)
from ckptstore.core.ids import derived_id
from ckptstore.core.limits import LEASE
from ckptstore.core.model import FileState, Location, launch_key
from ckptstore.core.replicas import stand_alone
from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from ckptstore.core.events import AfterLaunch, Event
    from ckptstore.core.model import Checkpoint, Launch, LaunchKey
    from ckptstore.core.replicas import Layout

    _Began = tuple[datetime, str]  # when a launch began, and its name
    LayoutOf = Callable[[Launch, Mapping[tuple[int, str], tuple[str, bytes]]], Layout]
    """The layout of a launch by the contents of files: (kind, content) by rank and digest."""


@dataclass
class Projected:
    """The result of a projection.

    `launches` are the known launches that the events name, `records` counts new and changed records of files, `new` are
    the ids of the new ones. `left_out` are events of launches that have no `LaunchStarted` event yet.
    """

    launches: set[LaunchKey] = field(default_factory=set)
    records: int = 0
    new: list[str] = field(default_factory=list)
    left_out: list[Event] = field(default_factory=list)


def project(connection: sa.Connection, events: Iterable[Event], layout_of: LayoutOf | None = None) -> Projected:
    """Write events to the catalog. `layout_of` is needed if layout files are among them."""
    of_type: dict[type[Event], list[Any]] = defaultdict(list)
    done = Projected()
    started: list[LaunchStarted] = []
    others: list[AfterLaunch] = []
    for event in events:
        if isinstance(event, LaunchStarted):
            started.append(event)
        else:
            others.append(event)
    done.launches |= _put_launches(connection, started)
    named = {launch for event in others if (launch := launch_of(event)) is not None}
    files = [event.file for event in others if isinstance(event, FileRecorded)]
    removed = [path for event in others if isinstance(event, FilesRemoved) for path in event.paths]
    _lock_paths(connection, [*(file.path for file in files), *removed])
    known, are_new = _looked_up(connection, named, files)
    done.launches |= known
    for event in others:
        launch = launch_of(event)
        if launch is None or launch in known:
            of_type[type(event)].append(event)
        else:
            done.left_out.append(event)
    _put_rows(connection, of_type)
    _put_files(connection, [event.file for event in of_type[FileRecorded]], done, are_new=are_new)
    _put_removals(connection, of_type[FilesRemoved])
    if of_type[LayoutFileKept]:
        _put_layout_files(connection, of_type[LayoutFileKept], layout_of)
    return done


def _looked_up(
    connection: sa.Connection, launch_keys: Iterable[LaunchKey], files: Sequence[Checkpoint]
) -> tuple[set[LaunchKey], bool]:
    """Which of these launches are known, and whether all files are new: no record at their paths, each path once.

    Both are asked for in one query, since every registration needs them.
    """
    ids = sorted(launch_keys)
    if not ids:
        return set(), False
    paths = {file.path for file in files}
    asked = {"own_launches": ids, "own_paths": list(paths), "own_ids": [file.id for file in files]}
    found = connection.execute(_LOOK, asked).all()
    return {row[0] for row in found}, len(paths) == len(files) and not any(row[1] for row in found)


_LOOK = sa.select(
    launches.c.id,
    sa.exists().where(any_of(checkpoints.c.path, "own_paths"))
    | sa.exists().where(any_of(trash.c.checkpoint_id, "own_ids")),
).where(any_of(launches.c.id, "own_launches"))


# Launches


def _put_launches(connection: sa.Connection, events: Sequence[LaunchStarted]) -> set[LaunchKey]:
    """Write launches, their parents, and where they start; return the keys of all launches."""
    of_run: dict[str, dict[LaunchKey, list[LaunchStarted]]] = {}
    for event in events:
        told = of_run.setdefault(event.launch.run, {})
        if event.origin is not None:
            told.setdefault(event.origin.key, []).append(LaunchStarted(event.origin.undecided()))
        told.setdefault(event.launch.key, []).append(event)
    for run, by_key in of_run.items():
        _put_launches_of_run(connection, run, by_key)
    starts: dict[LaunchKey, dict[str, Any]] = {}  # each rank of a launch tells the same
    for event in events:
        if event.at is not None:
            row, key = _start_row(event, event.at), event.launch.key
            starts[key] = row if key not in starts or _is_before(row, starts[key]) else starts[key]
    for key in sorted(starts):
        _put_start(connection, starts[key])
    return {key for by_key in of_run.values() for key in by_key}


def _put_launches_of_run(
    connection: sa.Connection, run: str, told: Mapping[LaunchKey, Sequence[LaunchStarted]]
) -> None:
    if not _launches_changed(connection, told)[1]:
        return
    run_id = add_run(connection, run)
    reads.lock_run(connection, run_id)  # launches are numbered
    there, changed = _launches_changed(connection, told)  # again under the lock: others may have written since
    began = {launch_id: (row["created_at"], row["name"]) for launch_id, row in changed.items()}
    new = {launch_id: began[launch_id] for launch_id in began.keys() - there.keys()}
    moved = {each: began[each] for each in began.keys() & there.keys() if began[each][0] != there[each]["created_at"]}
    orders = _number_launches(connection, run_id, new, moved) if new or moved else {}
    for launch_id, row in changed.items():
        if launch_id in there:
            values = {name: value for name, value in row.items() if value != there[launch_id][name]}
            connection.execute(_SET_LAUNCH, {"own_launch": launch_id, **values})
        else:
            connection.execute(launches.insert(), {**row, "run_id": run_id, "launch_order": orders[launch_id]})


def _launches_changed(
    connection: sa.Connection, told: Mapping[LaunchKey, Sequence[LaunchStarted]]
) -> tuple[dict[LaunchKey, dict[str, Any]], dict[LaunchKey, dict[str, Any]]]:
    """The stored rows of these launches, and the rows to write because they are new or changed."""
    there = {row.id: row._asdict() for row in connection.execute(_LAUNCHES, {"own_ids": sorted(told)})}
    known = {
        launch_id: reduce(_joined, [*([there[launch_id]] if launch_id in there else ()), *map(_launch_row, events)])
        for launch_id, events in told.items()
    }
    for launch_id in there:  # a layout that layout files prove wins over one of an event
        if known[launch_id]["layout"] != there[launch_id]["layout"] and layouts.strategies_of(connection, launch_id):
            known[launch_id]["layout"] = there[launch_id]["layout"]
    return there, {launch_id: row for launch_id, row in known.items() if there.get(launch_id) != row}


def _launch_row(event: LaunchStarted) -> dict[str, Any]:
    launch = event.launch
    if launch.created_at is None:
        raise ValueError(f"launch {launch.id} has no moment")
    data = {
        "steps_per_epoch": launch.steps_per_epoch,
        "batch_size": launch.batch_size,
        "shards": launch.shards,
    }
    version = None
    if any(value is not None for value in data.values()):
        version = version_of(event.data_at or launch.created_at, data)
    return {
        "id": launch.key,
        "name": launch.id,
        "world_size": launch.world_size,
        "layout": launch.layout.to_json(),
        **data,
        "data_version": version,
        "created_at": launch.created_at,
        "owner": os.geteuid() if launch.owner is None else launch.owner,
    }


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merge the rows of two events about one launch. A layout with replicas wins over one without."""
    row = dict(one)
    row["created_at"] = min(one["created_at"], other["created_at"])
    row["world_size"] = max(one["world_size"], other["world_size"])
    row["owner"] = one["owner"] or other["owner"]  # root may record launches of other users
    if (other["data_version"] or "") > (one["data_version"] or ""):
        for name in ("steps_per_epoch", "batch_size", "shards", "data_version"):
            row[name] = other[name]
    row["layout"] = max(one["layout"], other["layout"], key=lambda layout: (layout != _NO_REPLICAS, repr(layout)))
    return row


_NO_REPLICAS = stand_alone().to_json()


def _number_launches(
    connection: sa.Connection, run_id: int, new: Mapping[LaunchKey, _Began], moved: Mapping[LaunchKey, _Began]
) -> dict[LaunchKey, int]:
    """Number the launches of a run from 1 by the moment when they began; renumber the stored ones if needed."""
    there = {key: (at, name, order) for key, at, name, order in connection.execute(_ORDER, {"own_run": run_id})}
    began = {**new, **{key: (at, name) for key, (at, name, _) in there.items()}, **moved}
    orders = {key: place for place, key in enumerate(sorted(began, key=began.__getitem__), 1)}
    changed = [{"own_launch": key, "launch_order": orders[key]} for key in there if there[key][2] != orders[key]]
    if changed:
        connection.execute(_SET_LAUNCH, changed)
    return orders


_LAUNCHES = sa.select(launches).where(any_of(launches.c.id, "own_ids"))
_ORDER = sa.select(launches.c.id, launches.c.created_at, launches.c.name, launches.c.launch_order).where(
    launches.c.run_id == sa.bindparam("own_run")
)
_SET_LAUNCH = launches.update().where(launches.c.id == sa.bindparam("own_launch"))
_START = sa.select(resolutions).where(resolutions.c.launch_id == sa.bindparam("own_launch"))
_STARTS = (_START, _START.with_for_update())  # compared again under a lock: other processes may have written it since
_SET_START = resolutions.update().where(resolutions.c.launch_id == sa.bindparam("own_launch"))


def _start_row(event: LaunchStarted, at: datetime) -> dict[str, Any]:
    launch = event.launch
    return {
        "launch_id": launch.key,
        "parent_launch_id": event.origin.key if event.origin else None,
        "parent_step": launch.parent_step if event.origin else None,
        "branched": launch.branched,
        "start_step": launch.start_step,
        "plan": [[rank, file.id] for rank, file in event.plan],
        "passed": [list(each) for each in event.passed],
        "initial": list(launch.initial) if launch.initial else None,
        "initial_launch_id": launch.initial.launch_key if launch.initial else None,
        "created_at": at,
    }


def _put_start(connection: sa.Connection, row: dict[str, Any]) -> None:
    """Write where a launch starts: the first decision wins; of equal ones, the event that lists the ranks' files."""
    asked = {"own_launch": row["launch_id"]}
    if not insert_if_new(connection, resolutions, row):
        stored = (connection.execute(look, asked).one_or_none() for look in _STARTS)
        if all(there is not None and _is_before(row, there._asdict()) for there in stored):
            connection.execute(_SET_START, {**asked, **row})
    if row["plan"] and row["parent_launch_id"] is not None:
        leases.hold_if_new(connection, row["launch_id"], row["created_at"] + LEASE)


def _is_before(row: dict[str, Any], other: dict[str, Any]) -> bool:
    keys = [
        (each["created_at"], not each["plan"], not each["passed"], repr(sorted(each.items(), key=str)))
        for each in (row, other)
    ]
    return keys[0] < keys[1]


# Files


def _put_files(connection: sa.Connection, files: Sequence[Checkpoint], done: Projected, *, are_new: bool) -> None:
    """Write records of files, and count the new and changed ones.

    `are_new`: the catalog has no record at these paths, and no two of the files have the same path.
    """
    newest: dict[str, dict[str, Any]] = {}
    of_saves: dict[str, Checkpoint] = {}
    for file in files:
        row = _file_row(file)
        before = newest.get(file.id)
        newest[file.id] = row if before is None else _newer(before, row)
        first = of_saves.get(file.save_id)
        if first is None or _moment(file) < _moment(first):
            of_saves[file.save_id] = file
    if not newest:
        return
    known = {} if are_new else {row[0]: row for row in connection.execute(_KNOWN, {"own_ids": list(newest)})}
    changed = [
        row
        for file_id, row in sorted(newest.items())
        if file_id not in known or row["version"] > known[file_id][1] or row["created_at"] < known[file_id][2]
    ]
    if changed:
        _put_saves(connection, of_saves)
        connection.execute(_file(connection.dialect.name), changed)
        if not are_new:
            paths = {row["path"] for row in changed} | _refer_to_own_paths(connection, newest)
            connection.execute(_SET_STATES_AT_PATHS, {"own_paths": sorted(paths)})
    done.records = len(changed)
    done.new = sorted(newest.keys() - known.keys())


def _file_row(file: Checkpoint) -> dict[str, Any]:
    return {
        "id": file.id,
        "save_id": file.save_id,
        "rank": file.rank,
        "path": file.path,
        "optimizer_step": file.optimizer_step,
        "epoch": file.epoch,
        "step_in_epoch": file.step_in_epoch,
        "size": file.size,
        "digest": file.digest,
        "mtime_ns": file.mtime_ns,
        "format": file.format,
        "content": file.content.value,
        "strategy_file": file.strategy_file,
        "metrics": dict(file.metrics),
        "state": file.state.value,
        "reported": file.state.value,
        "problem": file.problem.value if file.problem else None,
        "quarantine": file.quarantine or None,
        "created_at": _moment(file),
        "revision": file.revision,
        "grade": file.grade.value if file.grade else None,
        "doubt": file.doubt or None,
        "pause": file.timing.pause if file.timing else None,
        "written_after": file.timing.written if file.timing else None,
        "step_took": file.timing.step if file.timing else None,
        "directory_id": file.directory_id or None,
        "version": version_of_file(file),
    }


def _newer(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    last = max(one, other, key=lambda row: str(row["version"]))
    return {**last, "created_at": min(one["created_at"], other["created_at"])}


def _lock_paths(connection: sa.Connection, paths: Iterable[str]) -> None:
    """Lock the records of these paths until the transaction ends: a record changes the states of others at its path.

    SQLite has one writer at a time anyway. All paths share a few locks, always taken in the same order: no deadlock.
    """
    if connection.dialect.name != "sqlite":
        keys = sorted({crc32(path.encode()) % _PATH_LOCKS for path in paths})
        for key in keys:
            connection.execute(_LOCK, {"own_key": key})


_PATH_LOCKS = 64
_LOCK = sa.select(sa.func.pg_advisory_xact_lock(0x636B7061, sa.bindparam("own_key", type_=sa.Integer)))


def _moment(file: Checkpoint) -> Any:
    if file.created_at is None:
        raise ValueError(f"the record of {file.path} has no moment")
    return file.created_at


def _put_saves(connection: sa.Connection, first: Mapping[str, Checkpoint]) -> None:
    """Write the saves of files. A save's moment is that of its earliest file."""
    rows = [
        {
            "id": save_id,
            "launch_id": file.launch_key,
            "kind": file.kind.value,
            "global_step": file.global_step,
            "created_at": _moment(file),
        }
        for save_id, file in sorted(first.items())
    ]
    connection.execute(_save(connection.dialect.name), rows)


# Statements that every record needs are built once: building one takes longer than running it.

_KNOWN = sa.select(checkpoints.c.id, checkpoints.c.version, checkpoints.c.created_at).where(
    any_of(checkpoints.c.id, "own_ids")
)


@cache
def _save(dialect: str) -> Any:
    statement = insert(dialect, saves)
    earlier = {"created_at": statement.excluded.created_at}
    is_earlier = saves.c.created_at > statement.excluded.created_at
    return statement.on_conflict_do_update(index_elements=["id"], set_=earlier, where=is_earlier)


@cache
def _file(dialect: str) -> Any:
    statement = insert(dialect, checkpoints)
    own, other = checkpoints.c, statement.excluded
    is_newer = other.version > own.version
    fixed = ("id", "save_id", "rank", "path", "created_at", "state")
    names = [column.name for column in checkpoints.c if column.name not in fixed]
    changed = {name: sa.case((is_newer, other[name]), else_=own[name]) for name in names}
    changed["created_at"] = sa.case((own.created_at > other.created_at, other.created_at), else_=own.created_at)
    return statement.on_conflict_do_update(index_elements=["id"], set_=changed)


def _state() -> sa.ColumnElement[str]:
    """The state of a file: as it was reported, unless retention removed it or another record took its path.

    A path holds one file. Of several records of a run at one path, the file of the last one is there, or that of an
    earlier one that was seen again after the last one was gone. Records of other runs may be of the same file: they are
    ignored.
    """
    own, other = checkpoints, checkpoints.alias("other")
    of_own, of_other = launches.alias("launch_of_own"), launches.alias("launch_of_other")
    save_of_own, save_of_other = saves.alias("save_of_own"), saves.alias("save_of_other")
    own_run = (
        sa.select(of_own.c.run_id)
        .select_from(save_of_own.join(of_own, of_own.c.id == save_of_own.c.launch_id))
        .where(save_of_own.c.id == own.c.save_id)
        .correlate(own)
        .scalar_subquery()
    )
    # In this form the index is used: the next record of the path comes first.
    is_later = (other.c.created_at >= own.c.created_at) & (
        (other.c.created_at > own.c.created_at) | (other.c.id > own.c.id)
    )
    is_seen_after_it = (other.c.reported == FileState.MISSING.value) & (
        own.c.revision > sa.func.coalesce(other.c.revision, other.c.mtime_ns)
    )
    # The other file is in the trash, and not at the path, even if its record is the later one by a clock set back.
    of_retention = trash.alias("trash_of_other")
    is_in_the_trash = (
        sa.select(of_retention.c.id)
        .where(
            of_retention.c.checkpoint_id == other.c.id,
            of_retention.c.settled,
            of_retention.c.wanted == Location.TRASH.value,
            other.c.path == sa.func.rtrim(of_retention.c.root, "/") + "/" + of_retention.c.place,
        )
        .correlate(other)
        .exists()
    )
    at_the_path = (
        sa.select(other.c.id)
        .select_from(
            other.join(save_of_other, save_of_other.c.id == other.c.save_id).join(
                of_other, of_other.c.id == save_of_other.c.launch_id
            )
        )
        .where(
            other.c.path == own.c.path,
            other.c.id != own.c.id,
            of_other.c.run_id == own_run,
            sa.not_(is_in_the_trash),
            # Two disks may be mounted at this path in turn: a file on the one does not replace a file on the other.
            sa.or_(
                own.c.directory_id == other.c.directory_id, *(each.c.directory_id.is_(None) for each in (own, other))
            ),
        )
        .correlate(own)
    )
    # The same file has two records: a scan adopted it before the catalog had the record of its rank.
    is_the_same = sa.func.coalesce(sa.and_(other.c.size == own.c.size, other.c.mtime_ns == own.c.mtime_ns), sa.false())
    is_only_seen = is_the_same & own.c.grade.is_(None) & other.c.grade.is_not(None)
    is_overwritten = at_the_path.where(
        is_later, sa.not_(sa.func.coalesce(is_seen_after_it, sa.false())), sa.not_(is_only_seen)
    ).exists()
    is_registered_now = at_the_path.where(is_the_same, own.c.grade.is_not(None), other.c.grade.is_(None)).exists()
    is_told_moved = own.c.reported == FileState.MOVED.value

    def has_removal(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        # A file that was reported missing may be missing because retention moved it.
        is_that = trash.c.of_version >= sa.func.substr(own.c.version, 1, GENERATION)
        return (
            sa.select(trash.c.id)
            .where(
                trash.c.checkpoint_id == own.c.id,
                trash.c.run_id == own_run,
                own.c.path == REMOVED_PATH,  # it counts at its own path only
                condition,
                is_that | (own.c.reported == FileState.MISSING.value),
            )
            .correlate(own)
            .exists()
        )

    return sa.case(
        (has_removal(IS_REMOVED), FileState.TRASHED.value),
        (has_removal(trash.c.settled & (trash.c.wanted == Location.GONE.value)), FileState.MISSING.value),
        (is_told_moved | is_registered_now, FileState.MOVED.value),
        (is_overwritten, FileState.MISSING.value),
        else_=own.c.reported,
    )


_SET_STATES_AT_PATHS = (
    checkpoints.update()
    .values(state=_state())
    .where(any_of(checkpoints.c.path, "own_paths"), checkpoints.c.state != _state())
)


# What retention did


def _put_removals(connection: sa.Connection, events: Sequence[FilesRemoved]) -> None:
    run_id = cache(partial(add_run, connection))
    rows: list[dict[str, Any]] = []
    for event in events:
        rows += [
            {
                "id": derived_id(event.run, event.collection, event.directory, file.place),
                "run_id": run_id(event.run),
                "collection_id": event.collection,
                "checkpoint_id": file.checkpoint or None,
                "of_version": file.of_version,
                "root": event.directory,
                "place": file.place,
                "size": file.size,
                "mtime_ns": file.mtime_ns,
                "wanted": event.wanted.value,
                "settled": event.settled,
                "changed_at": event.at,
                "version": version_of(event.at, event.wanted, event.settled, file),
            }
            for file in event.files
        ]
    if rows:
        put_newest(connection, trash, rows)
        # By path, not by record: the row may have named another record of the path before.
        _refer_to_own_paths(connection, {file.checkpoint for event in events for file in event.files})
        paths = sorted({path for event in events for path in event.paths})
        connection.execute(_SET_STATES_AT_PATHS, {"own_paths": paths})


def _refer_to_own_paths(connection: sa.Connection, named: Iterable[str]) -> set[str]:
    """Let removals that name these records refer to the records of their own paths; return the paths of those changed.

    A directory may have two paths at once, or another one than before, and each of its files a record for each path. A
    removal in its journal names the record of one path, and counts for the path at which the journal is read.
    """
    found = connection.execute(_OF_OTHER_PATHS, {"own_ids": sorted(named)}).all()
    files = reads.files_by_id(connection, [row.checkpoint_id for row in found])
    for row in found:
        own = replace(files[row.checkpoint_id], path=row.path).id
        connection.execute(trash.update().where(trash.c.id == row.id).values(checkpoint_id=own))
    return {row.path for row in found}


_OF_OTHER_PATHS = (
    sa.select(trash.c.id, trash.c.checkpoint_id, REMOVED_PATH.label("path"))
    .join(checkpoints, checkpoints.c.id == trash.c.checkpoint_id)
    .where(any_of(trash.c.checkpoint_id, "own_ids"), checkpoints.c.path != REMOVED_PATH)
)


# All other events: one row for each subject, with the newest version


def _put_rows(connection: sa.Connection, of_type: Mapping[type[Event], list[Any]]) -> None:
    if of_type[SourceAdded]:
        connection.execute(_source(connection.dialect.name), list(map(_source_row, of_type[SourceAdded])))
    put_newest(connection, endings, [_ending_row(event) for event in of_type[TrainingEnded]])
    put_newest(connection, outcomes, [_outcome_row(event) for event in of_type[LoadOutcome]])
    run_id = cache(partial(add_run, connection))  # each directory of a run tells the same
    files = [(run_id(event.run), event.file, event.at) for event in of_type[FileUnplaced]]
    rows = [{"run_id": run, **vars(file), "version": version_of(at, file)} for run, file, at in files]
    put_newest(connection, unplaced, rows)
    put_newest(connection, tiers, _tier_rows(connection, of_type[TierDeclared], of_type[CopyRecorded]))
    put_newest(connection, copies, [_copy_row(event) for event in of_type[CopyRecorded]])
    rows = [
        {
            "id": event.collection,
            "run_id": run_id(event.run),
            "created_at": event.began,
            "purge_after": event.purge_after,
            "ended": event.ended,
            "version": version_of(event.at, event),
        }
        for event in of_type[GcEnded]
    ]
    put_newest(connection, collections, rows)
    for kind, table in user_events.TABLES.items():
        rows = []
        for event in of_type[kind]:
            said = {name: value for name, value in vars(event).items() if name not in ("run", "at")}
            rows.append({"run_id": run_id(event.run), **said, "version": version_of_user_event(event)})
        put_newest(connection, table, rows)


def _ending_row(event: TrainingEnded) -> dict[str, Any]:
    return {
        "launch_id": launch_of(event),
        "rank": event.rank,
        "global_step": event.global_step,
        "optimizer_step": event.optimizer_step,
        "error": event.error,
        "quarantine": event.quarantine or None,
        "created_at": event.at,
        "version": version_of(event.at, event),
    }


def _outcome_row(event: LoadOutcome) -> dict[str, Any]:
    file = event.file.id if event.file else None
    return {
        "launch_id": launch_of(event),
        "rank": event.rank,
        "outcome": event.outcome.value,
        "checkpoint_id": file,
        "detail": event.detail,
        "created_at": event.at,
        "version": version_of(event.at, event.outcome, file, event.detail),
    }


def _tier_rows(
    connection: sa.Connection, declared: Iterable[TierDeclared], used: Sequence[CopyRecorded]
) -> list[dict[str, Any]]:
    """Rows of declared tiers, and of tiers that only copies name: a declaration has the greater version.

    Unchanged tiers are not written: else processes that copy at the same time would wait for each other.
    """
    told = [(each.tier, each.declared, version_of(each.at, each.tier.level, each.declared)) for each in declared]
    of_copies = {(event.tier, event.trusted) for event in used}
    told += [(tier, trusted, f"0{int(trusted)}{tier.level:010}") for tier, trusted in of_copies]
    asked = {"own_ids": sorted({tier.id for tier, *_ in told})}
    known = dict(connection.execute(_TIER_VERSIONS, asked).all()) if told else {}
    news = [each for each in told if each[2] > known.get(each[0].id, "")]
    return [
        {"id": tier.id, **tier._asdict(), "declared": is_declared, "version": version}
        for tier, is_declared, version in sorted(news)
    ]


_TIER_VERSIONS = sa.select(tiers.c.id, tiers.c.version).where(any_of(tiers.c.id, "own_ids"))


def _copy_row(event: CopyRecorded) -> dict[str, Any]:
    told = (event.key, event.state, event.file.size, event.file.digest, event.beside, event.detail)
    return {
        "checkpoint_id": event.file.id,
        "tier_id": event.tier.id,
        "launch_id": event.file.launch_key,
        "location": event.key,
        "state": event.state.value,
        "size": event.file.size,
        "digest": event.file.digest,
        "beside": [list(each) for each in event.beside],
        "detail": event.detail,
        "created_at": event.at,
        "version": version_of(event.at, *told),
    }


def _source_row(event: SourceAdded) -> dict[str, Any]:
    source = event.source
    return {
        "launch_id": source.launch_key,
        "rank": source.rank,
        "directory": source.directory,
        "kind": source.kind.value,
        "prefix": source.prefix,
        "breakpoint_prefix": source.breakpoint_prefix,
        "names_before": sorted(source.names_before),
        "host": source.host,
        "content": source.content.value if source.content else None,
        "directory_id": source.directory_id or None,
        "created_at": event.at,
    }


@cache
def _source(dialect: str) -> Any:
    statement = insert(dialect, sources)
    keys = ("launch_id", "rank", "directory", "kind", "prefix")
    own, other = sources.c, statement.excluded
    changed = {column.name: other[column.name] for column in own if column.name not in keys}
    # A launch's id may be used again after a clock was set back: the shorter list of names is from its first start.
    found, found_by_other = (sa.func.length(sa.cast(each.names_before, sa.Text)) for each in (own, other))
    is_earlier = (found == found_by_other) & (own.created_at > other.created_at)
    return statement.on_conflict_do_update(
        index_elements=keys, set_=changed, where=(found > found_by_other) | is_earlier
    )


def _put_layout_files(connection: sa.Connection, events: Sequence[LayoutFileKept], layout_of: LayoutOf | None) -> None:
    """Store strategy and group info files, each content once, and derive the layouts of their launches from them."""
    new: set[LaunchKey] = set()
    for event in events:
        key = launch_key(event.run, event.launch)
        if not layouts.has_strategy(connection, key, event.digest):
            new.add(key)
        insert_if_new(connection, strategies, {"digest": event.digest, "kind": event.kind, "content": event.content})
        row = {"launch_id": key, "rank": event.rank, "digest": event.digest, "path": event.path}
        statement = insert(connection.dialect.name, launch_strategies).values(row)
        is_first = launch_strategies.c.path > statement.excluded.path
        keys = ["launch_id", "rank", "digest"]
        connection.execute(
            statement.on_conflict_do_update(index_elements=keys, set_={"path": statement.excluded.path}, where=is_first)
        )
    for key in sorted(new):
        chosen = launches.c.id == key
        # Without the key: each row of a rank that refers to the launch holds its key, and all ranks would wait for all.
        connection.execute(sa.select(launches.c.id).where(chosen).with_for_update(key_share=True))
        launch = reads.launch(connection, key)
        if launch is not None and layout_of is not None:
            layout = layout_of(launch, layouts.strategies_of(connection, key))
            connection.execute(launches.update().where(chosen).values(layout=layout.to_json()))


def add_run(connection: sa.Connection, name: str) -> int:
    """The id of the run of that name; a new run gets a row."""
    found = connection.execute(_RUN_ID, {"own_name": name}).scalar()
    if found is None:
        insert_if_new(connection, runs, {"name": name})
        found = connection.execute(_RUN_ID, {"own_name": name}).scalar_one()
    return int(found)


_RUN_ID = sa.select(runs.c.id).where(runs.c.name == sa.bindparam("own_name"))
