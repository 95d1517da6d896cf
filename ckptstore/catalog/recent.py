"""What a run did last: a few statements, for any length of its history and any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.reads import IS_HELD
from ckptstore.catalog.tables import (
    FILES_OF_LAUNCHES,
    IS_REMOVED,
    checkpoints,
    collections,
    gc_locks,
    launches,
    leases,
    saves,
    sources,
    trash,
)
from ckptstore.core.limits import purged_from
from ckptstore.core.model import FileState, Kind, Location

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from ckptstore.core.model import LaunchKey


@dataclass(frozen=True)
class Home:
    """Where a rank of a launch saves files of a kind, and the host that it runs on (None: not known)."""

    rank: int
    directory: str
    kind: Kind
    host: str | None


@dataclass(frozen=True)
class Saved:
    """A rank's file of a save, its size in bytes, when it was recorded, and when written, in nanoseconds since 1970."""

    step: int
    rank: int
    path: str
    size: int | None
    at: datetime
    mtime_ns: int | None


@dataclass(frozen=True)
class SaveCost:
    """What a save cost on its slowest rank, in seconds (None: not measured), when it began, and the bytes of all ranks.

    `pause`, `written` and `step_took` are measured as in `core.model.Timing`.
    """

    step: int
    at: datetime
    pause: float | None
    written: float | None
    step_took: float | None
    size: int


@dataclass(frozen=True)
class Waiting:
    """The files of a gc that are in the trash: how many, their bytes, and from when on they may be purged.

    `unmoved` counts files that the gc could not move: they are still at their places, but no start uses them.
    """

    files: int
    bytes: int
    purge_after: datetime
    ended: bool
    unmoved: int

    @property
    def purged_from(self) -> datetime:
        """The moment from which gc and purge delete the files."""
        return purged_from(self.purge_after)


@dataclass(frozen=True)
class Lock:
    """The process that moves or deletes files of a run, and when its lock expires if it is not renewed."""

    owner: str
    expires_at: datetime


def last_written(connection: sa.Connection, run: int) -> dict[str, int]:
    """When the newest file of each launch of a run was written, in nanoseconds since 1970, gone or not."""
    return {launch: int(mtime_ns) for launch, mtime_ns in connection.execute(_LAST_WRITTEN, {"own_run": run})}


_LAST_WRITTEN = (
    sa.select(launches.c.name, sa.func.max(checkpoints.c.mtime_ns))
    .select_from(FILES_OF_LAUNCHES)
    .where(launches.c.run_id == sa.bindparam("own_run"), checkpoints.c.mtime_ns.is_not(None))
    .group_by(launches.c.id)
)


def last_saves(connection: sa.Connection, run: int) -> dict[str, tuple[int, datetime]]:
    """The highest step that each launch of a run saved, and the time of its newest record; by the launch's id."""
    query = sa.select(launches.c.name, sa.func.max(saves.c.global_step), sa.func.max(checkpoints.c.created_at))
    query = query.select_from(FILES_OF_LAUNCHES).where(checkpoints.c.state != FileState.MOVED.value)
    found = connection.execute(query.where(launches.c.run_id == run).group_by(launches.c.id))
    return {launch: (step, at) for launch, step, at in found}


def homes_of(connection: sa.Connection, key: LaunchKey) -> list[Home]:
    """Where the ranks of a launch save."""
    query = sa.select(sources.c.rank, sources.c.directory, sources.c.kind, sources.c.host).distinct()
    rows = connection.execute(query.where(sources.c.launch_id == key).order_by(sources.c.rank))
    return [Home(row.rank, row.directory, Kind(row.kind), row.host) for row in rows]


def newest_saving(connection: sa.Connection, run: int) -> str | None:
    """The newest launch of a run that has a periodic save; None if none has."""
    has_one = sa.exists().where(saves.c.launch_id == launches.c.id, saves.c.kind == Kind.PERIODIC.value, IS_HELD)
    query = sa.select(launches.c.name).where(launches.c.run_id == run, has_one)
    return connection.execute(query.order_by(launches.c.launch_order.desc()).limit(1)).scalar()


def newest_saves(connection: sa.Connection, key: LaunchKey, count: int) -> list[Saved]:
    """The files of the newest periodic saves of a launch, deleted ones too, newest first."""
    newest = _newest(key, count).subquery()
    query = (
        sa.select(
            saves.c.global_step,
            checkpoints.c.rank,
            checkpoints.c.path,
            checkpoints.c.size,
            checkpoints.c.created_at,
            checkpoints.c.mtime_ns,
        )
        .join(saves)
        .where(saves.c.id.in_(sa.select(newest.c.id)), checkpoints.c.state != FileState.MOVED.value)
        .order_by(saves.c.global_step.desc(), checkpoints.c.rank)
    )
    return [Saved(*row) for row in connection.execute(query)]


def costs_of(connection: sa.Connection, key: LaunchKey, count: int) -> list[SaveCost]:
    """What the newest periodic saves of a launch cost, deleted ones too, newest first."""
    newest = _newest(key, count).subquery()
    columns = (checkpoints.c.pause, checkpoints.c.written_after, checkpoints.c.step_took, checkpoints.c.size)
    of_rank = sa.select(checkpoints.c.save_id, *(sa.func.max(each).label(each.name) for each in columns))
    of_rank = of_rank.where(checkpoints.c.save_id.in_(sa.select(newest.c.id)))
    ranks = of_rank.group_by(checkpoints.c.save_id, checkpoints.c.rank).subquery()  # a rank may have links to its file
    query = (
        sa.select(
            saves.c.global_step,
            saves.c.created_at,
            sa.func.max(ranks.c.pause),
            sa.func.max(ranks.c.written_after),
            sa.func.max(ranks.c.step_took),
            sa.func.coalesce(sa.func.sum(ranks.c.size), 0),
        )
        .join(ranks, ranks.c.save_id == saves.c.id)
        .group_by(saves.c.id)
        .order_by(saves.c.global_step.desc())
    )
    return [SaveCost(*row[:5], size=int(row[5])) for row in connection.execute(query)]


def last_steps(connection: sa.Connection, key: LaunchKey, ranks: Sequence[int], count: int) -> dict[int, int]:
    """The newest step that each of these ranks has a periodic save of, among the newest saves of their launch."""
    newest = _newest(key, count).subquery()
    query = (
        sa.select(checkpoints.c.rank, sa.func.max(newest.c.global_step))
        .join(newest, newest.c.id == checkpoints.c.save_id)
        .where(any_of(checkpoints.c.rank, "own_ranks"))
        .group_by(checkpoints.c.rank)
    )
    return {row[0]: row[1] for row in connection.execute(query, {"own_ranks": list(ranks)})}


def lease_of(connection: sa.Connection, key: LaunchKey) -> datetime | None:
    """Until when a launch holds the state that it starts from; None if it never had a lease."""
    return connection.execute(sa.select(leases.c.expires_at).where(leases.c.launch_id == key)).scalar()


def lock_of(connection: sa.Connection, run: int) -> Lock | None:
    """The lock on the files of a run, if a process has one. That process may have died."""
    row = connection.execute(sa.select(gc_locks).where(gc_locks.c.run_id == run)).one_or_none()
    return None if row is None else Lock(row.owner, row.expires_at)


def waiting(connection: sa.Connection, run: int) -> list[Waiting]:
    """The trash of a run, by gc, oldest first."""
    is_unmoved = collections.c.ended & sa.not_(trash.c.settled) & (trash.c.wanted == Location.TRASH.value)
    unmoved = sa.func.sum(sa.case((is_unmoved, 1), else_=0))
    query = (
        sa.select(
            sa.func.count(trash.c.id) - unmoved,
            sa.func.sum(sa.case((is_unmoved, 0), else_=trash.c.size)),
            collections.c.purge_after,
            collections.c.ended,
            unmoved,
        )
        .join(collections, (collections.c.id == trash.c.collection_id) & (collections.c.run_id == trash.c.run_id))
        .where(trash.c.run_id == run, IS_REMOVED)
        .group_by(collections.c.run_id, collections.c.id)
        .order_by(collections.c.purge_after)
    )
    return [Waiting(int(row[0]), int(row[1]), row[2], row[3], int(row[4])) for row in connection.execute(query)]


def _newest(key: LaunchKey, count: int) -> sa.Select[tuple[str, int]]:
    chosen = (saves.c.launch_id == key) & (saves.c.kind == Kind.PERIODIC.value)
    return (
        sa.select(saves.c.id, saves.c.global_step)
        .where(chosen, IS_HELD)
        .order_by(saves.c.global_step.desc())
        .limit(count)
    )
