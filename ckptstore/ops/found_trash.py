"""Trash that the catalog knows nothing of: another one, which is lost, or an older state of this one, left it there.

Without this nobody could bring it back by `undo`, and nothing would ever delete it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog import trash as rows
from ckptstore.catalog.trash import Collection, Item, Phase
from ckptstore.core.model import FileState
from ckptstore.errors import RefusedError
from ckptstore.ops.adopt import Skipped
from ckptstore.ops.gc_lock import GcLock
from ckptstore.storage.files import facts
from ckptstore.storage.trash import trash_below

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint
    from ckptstore.storage.trash import Trashed

KEPT_FOR = timedelta(days=30)
"""Whoever left it may have promised more than a day, and may still be at work: nothing tells."""

_BEFORE = (FileState.COMPLETE, FileState.DAMAGED)


@dataclass(frozen=True)
class FoundTrash:
    """What a gc left in the trash that the catalog did not know of: how many files and bytes, and of which run.

    `reason` says why it was not taken up (empty: it was, and `undo` brings it back).
    """

    collection: str
    run: str | None
    files: int
    bytes: int
    reason: str = ""


def take_up_trash(
    database: Database, root: Path, *, foreseen: Database | None = None
) -> tuple[tuple[FoundTrash, ...], tuple[Skipped, ...]]:
    """Make unknown trash below a directory this catalog's: for `KEPT_FOR` from now `undo` brings it back.

    Only what belongs to records of this catalog is taken up, files of the recorded size and time with what a gc puts
    beside them. What is in another's hands at this moment, or of no run here, is told and left alone. With `foreseen`,
    the catalog as it would be then, nothing is written.

    Told too is what cannot be looked into. Then nothing is taken up: a gc has its trash in several directories, and one
    that this catalog knows is not looked for again.
    """
    by_gc: dict[str, list[Trashed]] = {}
    hidden: list[Skipped] = []
    for file in trash_below(str(root), lambda path, reason: hidden.append(Skipped(path, reason))):
        by_gc.setdefault(file.collection, []).append(file)
    if not by_gc:
        return (), tuple(hidden)
    with database.read() as connection:
        known = rows.known_collections(connection, sorted(by_gc))
    with (foreseen or database).read() as connection:
        records = reads.files_at_paths(connection, [_path(each) for gc in by_gc.keys() - known for each in by_gc[gc]])
    found = []
    for gc in sorted(by_gc.keys() - known):
        own = _of_records(by_gc[gc], records)
        runs = sorted({file.run for file in own.values()})
        told = FoundTrash(gc, runs[0] if runs else None, len(by_gc[gc]), sum(each.facts.size for each in by_gc[gc]))
        if len(runs) != 1:
            reason = "of several runs" if runs else "of no file that the catalog has a record of"
            found.append(replace(told, reason=reason))
        elif hidden:
            found.append(replace(told, reason=f"more of it may be in {hidden[0].path}, which cannot be read"))
        elif foreseen is not None:
            found.append(told)
        else:
            found.append(replace(told, reason=_add(database, gc, runs[0], by_gc[gc], own)))
    return tuple(found), tuple(hidden)


def _path(file: Trashed) -> str:
    return f"{file.root.rstrip('/')}/{file.place}"


def _of_records(files: Sequence[Trashed], records: Mapping[str, Sequence[Checkpoint]]) -> dict[str, Checkpoint]:
    """The records of these files by path: those of the same size and time."""
    return {
        _path(file): record
        for file in files
        for record in records.get(_path(file), ())
        if (record.size, record.mtime_ns) == (file.facts.size, file.facts.mtime_ns)
    }


def _add(database: Database, gc: str, run: str, files: Sequence[Trashed], own: Mapping[str, Checkpoint]) -> str:
    """Record them as that gc would have; why not, if that cannot be now.

    A record whose file is at its place too stays as it is: an undo was killed over it, or somebody brought it back.
    """
    own = {path: record for path, record in own.items() if not _is_there(record)}
    with database.read() as connection:
        run_id = reads.run_id(connection, run)
    if run_id is None:
        return "its run is gone"
    try:
        with GcLock(database, run, run_id) as lock, database.write() as connection:
            lock.renew(connection)
            if not rows.known_collections(connection, [gc]):  # else its gc recorded it since we looked
                _put(connection, run_id, gc, files, own)
    except RefusedError as error:
        return error.message
    return ""


def _is_there(record: Checkpoint) -> bool:
    try:
        here = facts(record.path)
    except OSError:
        return False
    return here is not None and (here.size, here.mtime_ns) == (record.size, record.mtime_ns)


def _put(connection: Connection, run_id: int, gc: str, files: Sequence[Trashed], own: Mapping[str, Checkpoint]) -> None:
    now = datetime.now(timezone.utc)
    rows.add_collection(connection, run_id, Collection(gc, _began(gc, now), now))
    rows.end(connection, gc, now + KEPT_FOR)
    rows.add_items(connection, [_item(gc, file, own.get(_path(file))) for file in files])


def _item(gc: str, file: Trashed, record: Checkpoint | None) -> Item:
    before = None
    if record is not None:
        before = record.state if record.state in _BEFORE else FileState.COMPLETE
    return Item(
        collection=gc,
        root=file.root,
        place=file.place,
        size=file.facts.size,
        mtime_ns=file.facts.mtime_ns,
        phase=Phase.TRASHED,
        checkpoint=None if record is None else record.id,
        before=before,
    )


def _began(gc: str, now: datetime) -> datetime:
    """When a gc began, by its id; it is `now` for one that does not tell."""
    try:
        return datetime.strptime(gc.partition("-")[0], "%Y%m%dT%H%M%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return now
