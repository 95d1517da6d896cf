"""Trash that the catalog knows nothing of: another one, which is lost, or an older state of this one, left it there.

Without this nobody could bring it back by `undo`, and nothing would ever delete it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog import trash as rows
from ckptstore.catalog.trash import Collection, Item, Phase
from ckptstore.core.model import FileState
from ckptstore.errors import RefusedError
from ckptstore.ops.adopt import Skipped
from ckptstore.ops.gc_lock import GcLock
from ckptstore.storage import identity
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

    A gc has its trash in several directories: of one that the catalog knows, what it lacks is added. Told too is what
    cannot be looked into. Then nothing is taken up: what is hidden there may show that the trash is of another run.
    """
    by_gc: dict[str, list[Trashed]] = {}
    hidden: list[Skipped] = []
    for file in trash_below(str(root), lambda path, reason: hidden.append(Skipped(path, reason))):
        by_gc.setdefault(file.collection, []).append(file)
    if not by_gc:
        return (), tuple(hidden)
    with database.read() as connection:
        lacking = {gc: _lacking(connection, gc, files) for gc, files in sorted(by_gc.items())}
    lacking = {gc: files for gc, files in lacking.items() if files}
    with (foreseen or database).read() as connection:
        records = reads.files_at_paths(connection, [_path(each) for files in lacking.values() for each in files])
    found = []
    for gc, files in lacking.items():
        own = _of_records(files, records)
        runs = sorted({file.run for file in own.values()})
        told = FoundTrash(gc, runs[0] if runs else None, len(files), sum(each.facts.size for each in files))
        if len(runs) != 1:
            reason = "of several runs" if runs else "of no file that the catalog has a record of"
            found.append(replace(told, reason=reason))
        elif hidden:
            found.append(replace(told, reason=f"more of it may be in {hidden[0].path}, which cannot be read"))
        elif foreseen is not None:
            with database.read() as connection:
                reason = _in_the_way(connection, gc, reads.run_id(connection, runs[0]))
            found.append(replace(told, reason=reason))
        else:
            found.append(replace(told, reason=_add(database, gc, runs[0], files, own)))
    return tuple(found), tuple(hidden)


def _lacking(connection: Connection, gc: str, files: Sequence[Trashed]) -> list[Trashed]:
    """Those of these files that the catalog does not have in the trash of that gc, whatever their directory's path.

    What is recorded goes into the trash after that, and leaves it before its row goes: so what has no row, and is still
    there when that was read, never had one.
    """
    run_id = rows.known_collections(connection, [gc]).get(gc)
    if run_id is None:
        return list(files)
    what = cache(lambda root: identity.of_directory(root) or root)
    recorded = {(what(item.root), item.place) for item in rows.items_of(connection, run_id, *Phase, collection=gc)}
    return [each for each in files if (what(each.root), each.place) not in recorded and each.is_there()]


def _in_the_way(connection: Connection, gc: str, run_id: int | None) -> str:
    """Why nothing can be added to what the catalog has of a gc; empty if it can, or has nothing of it."""
    known = rows.known_collections(connection, [gc])
    if gc not in known:
        return ""
    if known[gc] != run_id:
        return "of a gc of another run"
    has_ended = any(each.id == gc and each.ended for each in rows.collections_of(connection, known[gc]))
    return "" if has_ended else "its gc has not ended: scan again when it has, or when the next one has"


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
            reason = _in_the_way(connection, gc, run_id)
            lacking = _lacking(connection, gc, files)  # its gc, or another scan, may have recorded some since we looked
            if lacking and not reason:
                _put(connection, run_id, gc, lacking, own)
    except RefusedError as error:
        return error.message
    return reason


def _is_there(record: Checkpoint) -> bool:
    try:
        here = facts(record.path)
    except OSError:
        return False
    return here is not None and (here.size, here.mtime_ns) == (record.size, record.mtime_ns)


def _put(connection: Connection, run_id: int, gc: str, files: Sequence[Trashed], own: Mapping[str, Checkpoint]) -> None:
    now = datetime.now(timezone.utc)
    promised = [each.purge_after for each in rows.collections_of(connection, run_id) if each.id == gc]
    rows.add_collection(connection, run_id, Collection(gc, _began(gc, now), now))
    rows.end(connection, gc, max([now + KEPT_FOR, *promised]))
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
