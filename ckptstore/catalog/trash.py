"""What retention has given up, and what is being done with it; and who may do that now."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.among import among
from ckptstore.catalog.project import OPEN_PHASES
from ckptstore.catalog.rows import many
from ckptstore.catalog.tables import UtcDateTime, checkpoints, collections, gc_locks, pins, runs, saves, tags, trash
from ckptstore.core.events import FilesRemoved, GcEnded, RemovedFile, moment_of
from ckptstore.core.model import FileState, Phase, derived_id
from ckptstore.outside import utc_now

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_NEVER = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, kw_only=True)
class Item:
    """A file that was given up: `place` is its path below `root`.

    `size` is in bytes, `mtime_ns` in nanoseconds since 1970: another file at the path is not it. `checkpoint` is the id
    of its record, and `of_version` the generation of that then (empty: the catalog has none). `changed_at` is when its
    phase was recorded, `reported` the state that its record has by itself.
    """

    run: str
    collection: str
    root: str
    place: str
    size: int
    mtime_ns: int
    phase: Phase
    changed_at: datetime
    checkpoint: str = ""
    of_version: str = ""
    reported: FileState | None = None

    @property
    def id(self) -> str:
        """What tells it from all others."""
        return derived_id(self.run, self.collection, self.root, self.place)

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
    told_at: datetime = field(default=_NEVER, compare=False)

    def told(self, run: str, *, ended: bool, purge_after: datetime | None = None) -> GcEnded:
        """What happens with it now, newer than what was told before."""
        at = max(utc_now(), self.told_at + timedelta(microseconds=1))
        return GcEnded(run, self.id, self.created_at, purge_after or self.purge_after, ended, at)

    def graced_from(self, now: datetime) -> datetime:
        """When it may be purged if it ends now: as long after that as was said when it began."""
        return now + max(self.purge_after - self.created_at, timedelta(0))


def told(run: str, items: Iterable[Item], phase: Phase) -> list[FilesRemoved]:
    """That these files are in a phase now: an event for each gc and directory."""
    of: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        of.setdefault((item.collection, item.root), []).append(item)
    last = max((item.changed_at for some in of.values() for item in some), default=_NEVER)
    at = max(utc_now(), last + timedelta(microseconds=1))
    events = []
    for (collection, root), some in of.items():
        files = tuple(
            RemovedFile(item.place, item.size, item.mtime_ns, item.checkpoint, item.of_version) for item in some
        )
        events.append(FilesRemoved(run, collection, root, phase, at, files))
    return events


def after_what_was_told(connection: sa.Connection, items: Sequence[Item]) -> list[Item]:
    """The items, each after what was told of its place in the same trash before, whatever the clocks say."""
    query = sa.select(trash.c.id, trash.c.changed_at).where(among(trash.c.id, [item.id for item in items]))
    told = {row[0]: row[1] for row in connection.execute(query)}
    return [replace(item, changed_at=max(item.changed_at, told.get(item.id, item.changed_at))) for item in items]


def collections_of(connection: sa.Connection, run: int) -> list[Collection]:
    """The gcs of a run that left something in the trash, newest first."""
    rows = connection.execute(_COLLECTIONS_OF, {"own_run": run})
    return [Collection(row.id, row.created_at, row.purge_after, row.ended, moment_of(row.version)) for row in rows]


_IS_OPEN = trash.c.phase.in_([phase.value for phase in OPEN_PHASES])
_COLLECTIONS_OF = (
    sa.select(collections)
    .where(
        collections.c.run_id == sa.bindparam("own_run"),
        sa.select(trash.c.id)
        .where(trash.c.collection_id == collections.c.id, trash.c.run_id == collections.c.run_id, _IS_OPEN)
        .exists(),
    )
    .order_by(collections.c.created_at.desc(), collections.c.id.desc())
)
_ITEMS_OF = (
    sa.select(trash, checkpoints.c.reported, runs.c.name)
    .select_from(
        trash.outerjoin(checkpoints, checkpoints.c.id == trash.c.checkpoint_id).join(runs, runs.c.id == trash.c.run_id)
    )
    .where(trash.c.run_id == sa.bindparam("own_run"), among(trash.c.phase, "own_phases"))
    .order_by(trash.c.changed_at, trash.c.collection_id, trash.c.root, trash.c.place)
)


def items_of(connection: sa.Connection, run: int, *phases: Phase, collection: str | None = None) -> list[Item]:
    """What is in one of these phases, of a run or of one gc of it, in the order it was given up."""
    query = _ITEMS_OF if collection is None else _ITEMS_OF.where(trash.c.collection_id == collection)
    given = {"own_run": run, "own_phases": [phase.value for phase in phases]}
    return [
        Item(
            run=row.name,
            collection=row.collection_id,
            checkpoint=row.checkpoint_id or "",
            of_version=row.of_version,
            root=row.root,
            place=row.place,
            size=row.size,
            mtime_ns=row.mtime_ns,
            phase=Phase(row.phase),
            changed_at=row.changed_at,
            reported=FileState(row.reported) if row.reported else None,
        )
        for row in many(connection.execute(query, given))
    ]


def known(connection: sa.Connection) -> set[str]:
    """The ids of all files, of whatever run, that retention has in its hands."""
    return set(connection.execute(sa.select(trash.c.id).where(_IS_OPEN)).scalars())


def of_marked_steps(connection: sa.Connection, run: int) -> set[str]:
    """Which items of a run are of a step that is pinned or tagged now, by their ids."""
    marked = sa.union(
        sa.select(pins.c.global_step).where(pins.c.run_id == run, pins.c.pinned),
        sa.select(tags.c.global_step).where(tags.c.run_id == run, tags.c.global_step.is_not(None)),
    )
    steps = set(connection.execute(marked).scalars())
    if not steps:
        return set()
    joined = trash.join(checkpoints, checkpoints.c.id == trash.c.checkpoint_id)
    joined = joined.join(saves, saves.c.id == checkpoints.c.save_id)
    chosen = (trash.c.run_id == run) & among(saves.c.global_step, steps)
    return set(connection.execute(sa.select(trash.c.id).select_from(joined).where(chosen)).scalars())


def begun(connection: sa.Connection, run: int) -> dict[str, Item]:
    """The files that were to go and perhaps did not, by the ids of their records.

    Whoever carried that out may have died over it.
    """
    items = items_of(connection, run, Phase.MOVING, Phase.DELETING)
    return {item.checkpoint: item for item in items if item.checkpoint}


def clock(connection: sa.Connection) -> datetime:
    """The time by the one clock that all have: the server's, or that of an SQLite file's machine."""
    if connection.dialect.name == "sqlite":
        return utc_now()
    now: datetime = connection.execute(sa.select(sa.func.clock_timestamp(type_=UtcDateTime))).scalar_one()
    return now


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
