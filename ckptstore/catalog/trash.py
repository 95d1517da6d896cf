"""What retention has given up, and what is being done with it; and who may do that now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.among import among
from ckptstore.catalog.rows import many
from ckptstore.catalog.tables import checkpoints, collections, gc_locks, pins, saves, tags, trash
from ckptstore.core.model import FileState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime


class Phase(str, Enum):
    """Where a file is: on its way to the trash, in it, on its way back; or being unlinked, there or in place."""

    MOVING = "moving"
    TRASHED = "trashed"
    RESTORING = "restoring"
    PURGING = "purging"
    DELETING = "deleting"

    __str__ = str.__str__


@dataclass(frozen=True, kw_only=True)
class Item:
    """A file that was given up: `place` is its path below `root`.

    `size` is in bytes, `mtime_ns` in nanoseconds since 1970: another file at the path is not it. `before` is the state
    that its record had, None where the catalog has no record of it. `id` is 0 until it is stored.
    """

    collection: str
    root: str
    place: str
    size: int
    mtime_ns: int
    phase: Phase
    checkpoint: str | None = None
    before: FileState | None = None
    id: int = 0

    @property
    def path(self) -> str:
        """Where it was."""
        return f"{self.root.rstrip('/')}/{self.place}"


@dataclass(frozen=True)
class Collection:
    """One gc whose files are in the trash, or on a way. One that has not `ended` was interrupted, or is at work."""

    id: str
    created_at: datetime
    purge_after: datetime
    ended: bool = False

    def graced_from(self, now: datetime) -> datetime:
        """When it may be purged if it ends now: as long after that as was said when it began."""
        return now + max(self.purge_after - self.created_at, timedelta(0))


def collections_of(connection: sa.Connection, run: int) -> list[Collection]:
    """The gcs of a run that left something in the trash, newest first."""
    query = sa.select(collections).where(collections.c.run_id == run)
    rows = connection.execute(query.order_by(collections.c.created_at.desc(), collections.c.id.desc()))
    return [Collection(row.id, row.created_at, row.purge_after, row.ended) for row in rows]


def known_collections(connection: sa.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Those of these gcs that the catalog knows of, with their runs."""
    known = sa.select(collections.c.id, collections.c.run_id).where(among(connection, collections.c.id, ids))
    return {row.id: row.run_id for row in connection.execute(known)}


def add_collection(connection: sa.Connection, run: int, collection: Collection) -> None:
    """Begin a gc, or go on with one."""
    mine = collections.c.id == collection.id
    if not connection.execute(collections.update().where(mine).values(ended=False)).rowcount:
        row = {"id": collection.id, "run_id": run, "created_at": collection.created_at, "ended": False}
        connection.execute(collections.insert().values(**row, purge_after=collection.purge_after))


def end(connection: sa.Connection, collection: str, purge_after: datetime | None = None) -> None:
    """A gc has ended: nothing is added to it any more, and what it trashed may be purged then (None: as it was)."""
    values: dict[str, object] = {"ended": True} | ({} if purge_after is None else {"purge_after": purge_after})
    connection.execute(collections.update().where(collections.c.id == collection).values(values))


def drop_empty(connection: sa.Connection, run: int) -> None:
    """Forget the gcs of a run of which nothing is left."""
    left = sa.select(trash.c.id).where(trash.c.collection_id == collections.c.id)
    connection.execute(collections.delete().where(collections.c.run_id == run, ~left.exists()))


def add_items(connection: sa.Connection, items: Sequence[Item]) -> None:
    """Record what is going to be done with these files, and that their records are of trashed ones."""
    if not items:
        return
    rows = [
        {
            "collection_id": item.collection,
            "checkpoint_id": item.checkpoint,
            "root": item.root,
            "place": item.place,
            "size": item.size,
            "mtime_ns": item.mtime_ns,
            "before": item.before.value if item.before else None,
            "phase": item.phase.value,
        }
        for item in items
    ]
    connection.execute(trash.insert(), rows)
    _set_records(connection, [item.checkpoint for item in items if item.checkpoint], FileState.TRASHED)


def items_of(connection: sa.Connection, run: int, *phases: Phase, collection: str | None = None) -> list[Item]:
    """What is in one of these phases, of a run or of one gc of it, in the order it was given up."""
    query = sa.select(trash).join(collections).where(collections.c.run_id == run)
    query = query.where(trash.c.phase.in_([phase.value for phase in phases]))
    if collection is not None:
        query = query.where(trash.c.collection_id == collection)
    return [
        Item(
            id=row.id,
            collection=row.collection_id,
            checkpoint=row.checkpoint_id,
            root=row.root,
            place=row.place,
            size=row.size,
            mtime_ns=row.mtime_ns,
            before=FileState(row.before) if row.before else None,
            phase=Phase(row.phase),
        )
        for row in many(connection.execute(query.order_by(trash.c.id)))
    ]


def of_marked_steps(connection: sa.Connection, run: int) -> set[int]:
    """Which items of a run are of a step that is pinned or tagged now, by their ids."""
    marked = sa.union(
        sa.select(pins.c.global_step).where(pins.c.run_id == run),
        sa.select(tags.c.global_step).where(tags.c.run_id == run),
    )
    steps = set(connection.execute(marked).scalars())
    if not steps:
        return set()
    joined = trash.join(collections).join(checkpoints).join(saves, saves.c.id == checkpoints.c.save_id)
    chosen = (collections.c.run_id == run) & among(connection, saves.c.global_step, steps)
    return set(connection.execute(sa.select(trash.c.id).select_from(joined).where(chosen)).scalars())


def begun(connection: sa.Connection, run: int) -> dict[str, Item]:
    """The files that were to go and perhaps did not, by the ids of their records.

    Whoever carried that out may have died over it.
    """
    items = items_of(connection, run, Phase.MOVING, Phase.DELETING)
    return {item.checkpoint: item for item in items if item.checkpoint}


def set_phase(connection: sa.Connection, items: Iterable[Item], phase: Phase) -> None:
    """Record what is done with these next."""
    ids = [item.id for item in items]
    if ids:
        connection.execute(trash.update().where(among(connection, trash.c.id, ids)).values(phase=phase.value))


def drop(connection: sa.Connection, items: Sequence[Item], *, restored: bool) -> None:
    """These are no longer retention's: their records are as they were before, or of files that are gone.

    Where a later file of the same record was given up too, the record is of that one, and stays as it is.
    """
    if items:
        connection.execute(trash.delete().where(among(connection, trash.c.id, [item.id for item in items])))
    later = _newest_of(connection, [item.checkpoint for item in items if item.checkpoint])
    of_state: dict[FileState, list[str]] = {}
    for item in items:
        if item.checkpoint and item.id > later.get(item.checkpoint, 0):
            state = item.before if restored and item.before else FileState.MISSING
            of_state.setdefault(state, []).append(item.checkpoint)
    for state, ids in of_state.items():
        _set_records(connection, ids, state, only=FileState.TRASHED)


def _newest_of(connection: sa.Connection, ids: Sequence[str]) -> dict[str, int]:
    """The last of the files of each of these records that retention has, by the record's id."""
    if not ids:
        return {}
    own = among(connection, trash.c.checkpoint_id, ids)
    query = sa.select(trash.c.checkpoint_id, sa.func.max(trash.c.id)).where(own).group_by(trash.c.checkpoint_id)
    return {row[0]: row[1] for row in connection.execute(query)}


def take_lock(connection: sa.Connection, run: int, owner: str, now: datetime, until: datetime) -> str | None:
    """Let `owner` work on the files of a run until then; who does so already, None if nobody did."""
    held = connection.execute(sa.select(gc_locks).where(gc_locks.c.run_id == run)).one_or_none()
    if held is not None and held.owner != owner and held.expires_at > now:
        return str(held.owner)
    release_lock(connection, run, None)
    connection.execute(gc_locks.insert().values(run_id=run, owner=owner, expires_at=until))
    return None


def renew_lock(connection: sa.Connection, run: int, owner: str, until: datetime) -> bool:
    """Let `owner` work on the files of a run until then; False if it does so no more."""
    mine = (gc_locks.c.run_id == run) & (gc_locks.c.owner == owner)
    return bool(connection.execute(gc_locks.update().where(mine).values(expires_at=until)).rowcount)


def release_lock(connection: sa.Connection, run: int, owner: str | None) -> None:
    """Give the lock back, if `owner` (None: whoever) has it."""
    statement = gc_locks.delete().where(gc_locks.c.run_id == run)
    if owner is not None:
        statement = statement.where(gc_locks.c.owner == owner)
    connection.execute(statement)


def _set_records(
    connection: sa.Connection, ids: Sequence[str], state: FileState, *, only: FileState | None = None
) -> None:
    statement = checkpoints.update().where(among(connection, checkpoints.c.id, ids)).values(state=state.value)
    if only is not None:
        statement = statement.where(checkpoints.c.state == only.value)
    connection.execute(statement)
