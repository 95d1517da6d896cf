"""The files that retention removes: where each is wanted, whether it is there yet, and which gc removed it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.rows import many
from ckptstore.catalog.tables import IS_REMOVED, checkpoints, collections, gc_locks, runs, trash
from ckptstore.catalog.upserts import put
from ckptstore.core.events import FilesRemoved, GcEnded, RemovedFile, later, moment_of
from ckptstore.core.ids import derived_id
from ckptstore.core.limits import purged_from
from ckptstore.core.model import FileState, Location
from ckptstore.outside import utc_now

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_NEVER = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, kw_only=True)
class Item:
    """A file that retention removes, or brings back. A file of another size or time at its path is another file."""

    run: str
    collection: str
    root: str
    place: str  # the path below the root
    size: int  # bytes
    mtime_ns: int  # since 1970
    wanted: Location
    settled: bool = False  # whether it is where it is wanted
    changed_at: datetime  # when that was recorded
    checkpoint: str = ""  # the id of its record; empty: it has none
    of_version: str = ""  # the generation of that record when it was removed
    reported: FileState | None = None  # the state that the record has by itself

    @property
    def id(self) -> str:
        """Identifies it among all items."""
        return derived_id(self.run, self.collection, self.root, self.place)

    @property
    def path(self) -> str:
        """Where it was."""
        return f"{self.root.rstrip('/')}/{self.place}"


@dataclass(frozen=True)
class Collection:
    """One gc that has files in the trash, or on their way to or from it."""

    id: str
    created_at: datetime
    purge_after: datetime
    ended: bool = False  # False: it was interrupted, or is at work
    told_at: datetime = field(default=_NEVER, compare=False)

    @property
    def purged_from(self) -> datetime:
        """The moment from which gc and purge delete it."""
        return purged_from(self.purge_after)

    def told(self, run: str, *, ended: bool, purge_after: datetime | None = None) -> GcEnded:
        """The event that this gc began, or ended, now; newer than its last event."""
        at = later(utc_now(), self.told_at)
        return GcEnded(run, self.id, self.created_at, purge_after or self.purge_after, ended, at)

    def graced_from(self, now: datetime) -> datetime:
        """When its files may be purged if it ends now: the grace is as long as planned when the gc began."""
        return now + max(self.purge_after - self.created_at, timedelta(0))


def moved(items: Iterable[Item], wanted: Location | None = None, *, settled: bool = False) -> list[Item]:
    """The items, changed now: `wanted` at this place (None: as before), `settled` or not.

    All get one time, later than the last event of each, even if that has the time of another clock.
    """
    every = list(items)
    at = later(utc_now(), *(item.changed_at for item in every))
    return [replace(item, wanted=wanted or item.wanted, settled=settled, changed_at=at) for item in every]


def told(items: Iterable[Item]) -> list[FilesRemoved]:
    """The events that record these items: items of one gc, directory and change share an event."""
    of: dict[tuple[str, str, str, Location, bool, datetime], list[RemovedFile]] = {}
    for item in items:
        key = item.run, item.collection, item.root, item.wanted, item.settled, item.changed_at
        file = RemovedFile(item.place, item.size, item.mtime_ns, item.checkpoint, item.of_version)
        of.setdefault(key, []).append(file)
    return [FilesRemoved(*key, tuple(files)) for key, files in of.items()]


def last_changes(connection: sa.Connection, items: Sequence[Item]) -> list[Item]:
    """The items, each with the time of its last event in the catalog if that is later."""
    query = sa.select(trash.c.id, trash.c.changed_at).where(any_of(trash.c.id, "own_ids"))
    last = {row[0]: row[1] for row in connection.execute(query, {"own_ids": [item.id for item in items]})}
    return [replace(item, changed_at=max(item.changed_at, last.get(item.id, item.changed_at))) for item in items]


def collections_of(connection: sa.Connection, run: int) -> list[Collection]:
    """The gcs of a run that have files in the trash, or on their way to or from it, newest first."""
    of_it = (trash.c.collection_id == collections.c.id) & (trash.c.run_id == collections.c.run_id)
    query = sa.select(collections).where(collections.c.run_id == run, sa.exists().where(of_it, IS_REMOVED))
    rows = connection.execute(query.order_by(collections.c.created_at.desc(), collections.c.id.desc()))
    return [Collection(row.id, row.created_at, row.purge_after, row.ended, moment_of(row.version)) for row in rows]


def items_of(
    connection: sa.Connection, run: int, *, settled: bool | None = None, collection: str | None = None
) -> list[Item]:
    """The files of a run, or of one gc of it, by the time of their last event.

    `settled`: only those in the trash (True), or only those on their way to or from it (False).
    """
    query = _ITEMS.where(trash.c.run_id == run, IS_REMOVED)
    if settled is not None:
        query = query.where(trash.c.settled if settled else sa.not_(trash.c.settled))
    if collection is not None:
        query = query.where(trash.c.collection_id == collection)
    return _items(connection, query)


def deleted_of(connection: sa.Connection, run: int, collection: str) -> list[Item]:
    """The files of one gc of a run that count as deleted for good."""
    return _items(connection, _ITEMS.where(trash.c.run_id == run, _IS_DELETED, trash.c.collection_id == collection))


def roots_of_deleted(connection: sa.Connection, run: int) -> list[str]:
    """The directories in which retention had files of a run that count as deleted for good."""
    query = sa.select(trash.c.root).distinct().where(trash.c.run_id == run, _IS_DELETED)
    return list(connection.execute(query.order_by(trash.c.root)).scalars())


def _items(connection: sa.Connection, query: sa.Select[Any]) -> list[Item]:
    return [
        Item(
            run=row.name,
            collection=row.collection_id,
            root=row.root,
            place=row.place,
            size=row.size,
            mtime_ns=row.mtime_ns,
            wanted=Location(row.wanted),
            settled=row.settled,
            changed_at=row.changed_at,
            checkpoint=row.checkpoint_id or "",
            of_version=row.of_version,
            reported=FileState(row.reported) if row.reported else None,
        )
        for row in many(connection.execute(query))
    ]


_IS_DELETED = trash.c.settled & (trash.c.wanted == Location.GONE.value)
_ITEMS = (
    sa.select(trash, checkpoints.c.reported, runs.c.name)
    .select_from(trash.outerjoin(checkpoints, checkpoints.c.id == trash.c.checkpoint_id).join(runs))
    .order_by(trash.c.changed_at, trash.c.collection_id, trash.c.root, trash.c.place)
)


def known(connection: sa.Connection) -> set[str]:
    """The ids of all items, of any run, in the trash or on their way to or from it."""
    return set(connection.execute(_KNOWN).scalars())


def leaving(connection: sa.Connection, run: int) -> dict[str, Item]:
    """The files that may still be at their places because a gc was interrupted, by the ids of their records."""
    items = items_of(connection, run, settled=False)
    return {item.checkpoint: item for item in items if item.checkpoint and item.wanted is not Location.HOME}


def take_lock(connection: sa.Connection, run: int, owner: str, now: datetime, until: datetime) -> str | None:
    """Lock the files of a run for `owner` up to `until`. Returns another process that has the lock, or None."""
    held = connection.execute(_LOCK_OF, {"own_run": run}).one_or_none()
    if held is not None and held.owner != owner and held.expires_at > now:
        return str(held.owner)
    put(connection, gc_locks, {"run_id": run, "owner": owner, "expires_at": until})
    return None


def renew_lock(connection: sa.Connection, run: int, owner: str, until: datetime) -> bool:
    """Extend the lock of `owner` up to `until`; False if it has lost the lock."""
    asked = {"own_run": run, "own_owner": owner, "expires_at": until}
    return bool(connection.execute(_RENEW_LOCK, asked).rowcount)


def release_lock(connection: sa.Connection, run: int, owner: str) -> None:
    """Give the lock back, if `owner` has it."""
    connection.execute(_RELEASE_LOCK, {"own_run": run, "own_owner": owner})


_KNOWN = sa.select(trash.c.id).where(IS_REMOVED)
_IS_OF_RUN, _IS_OWN = gc_locks.c.run_id == sa.bindparam("own_run"), gc_locks.c.owner == sa.bindparam("own_owner")
_LOCK_OF = sa.select(gc_locks).where(_IS_OF_RUN)
_RENEW_LOCK = gc_locks.update().where(_IS_OF_RUN, _IS_OWN)
_RELEASE_LOCK = gc_locks.delete().where(_IS_OF_RUN, _IS_OWN)
