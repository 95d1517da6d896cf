"""Tells a directory that was copied with its journals, as by `cp -r`, from the original.

No journal has the name of another one. So a journal is a copy if one of its name is in another directory. Of a copied
journal only the records of files count, and each only if its original is gone: the run does not save in the copy, and
what retention moved to a trash there is the user's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from ckptstore.catalog import directories
from ckptstore.core.events import (
    CopyRecorded,
    FileRecorded,
    FilesRemoved,
    FileUnplaced,
    LaunchStarted,
    LayoutFileKept,
    LoadOutcome,
    SourceAdded,
)
from ckptstore.core.groups import grouped
from ckptstore.core.model import FileState
from ckptstore.core.sighting import Sighting, compare
from ckptstore.disk import files
from ckptstore.disk.presence import absence_beside, below, identity_of, identity_path
from ckptstore.journal import jsonl
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Database
    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint
    from ckptstore.disk.trust import Trust


def _age(directory: str) -> tuple[bool, int, int, str]:
    """A sort key of directories that have the same journals: the original has the lowest.

    A backup below a directory is the copy, even if it seems to be older: the clocks of machines differ. Else the
    original is the directory that got its identity first, by the ctime of the identity's file. `cp -a` copies other
    times, but not the ctime.
    """
    identity = identity_of(directory)
    depth = directory.count("/")  # without an identity: a backup below a directory is the copy
    try:
        found = os.stat(identity_path(directory, identity))
    except OSError:
        return False, 0, depth, directory
    is_below = any(os.path.exists(identity_path(str(above), identity)) for above in Path(directory).parents)
    return is_below, found.st_ctime_ns, depth, directory


def copied_journals(paths: AbstractSet[str], known: Iterable[str], trust: Trust) -> dict[str, list[str]]:
    """Which of these journals are copies, each with its originals, the oldest first.

    Those are the journals that the catalog knows, and older ones of these: of several backups, an older one may be the
    only one that has a file. `known` are the journals that have their names. An original is there, and its owner is the
    copy's or is trusted: else any user could make the journals of others copies.
    """
    named = grouped((path.rpartition("/")[2], path) for path in (*paths, *known))
    age = cache(_age)
    copies: dict[str, list[str]] = {}
    for some in (each for each in named.values() if len(each) > 1):
        there = [path for path in some if files.identity(path) is not None]
        if len(there) > 1:  # in a tree that was moved, the known ones are gone
            there.sort(key=lambda path: (path in paths, age(jsonl.directory_of(path))))
        for at, path in enumerate(there):
            originals = [other for other in there[:at] if _is_copy(path, other, trust)] if path in paths else []
            if originals:
                copies[path] = originals
    return copies


def _is_copy(path: str, original: str, trust: Trust) -> bool:
    """Whether a journal is another file than one that a trusted user owns: one file may have two mounts."""
    try:
        owner, of_original = os.lstat(path).st_uid, os.lstat(original).st_uid
    except OSError:
        return False
    may_tell = of_original == owner or trust.is_full(of_original)
    return may_tell and files.identity(path) != files.identity(original)


def of_copy(event: Event, copies: AbstractSet[str]) -> Event | None:
    """What an event of a copied journal tells; None: nothing, since it is about the original's directory.

    `copies` are the ids of the files that are copies.
    """
    if isinstance(event, FileRecorded) and event.file.id in copies and event.file.state is FileState.COMPLETE:
        return FileRecorded(event.file.amended(state=FileState.MOVED))
    if isinstance(event, LaunchStarted):
        return replace(event, at=None, plan=(), passed=(), launch=event.launch.undecided())
    return None if isinstance(event, _OF_DIRECTORY) else event


_OF_DIRECTORY = (SourceAdded, FileUnplaced, LoadOutcome, LayoutFileKept, FilesRemoved, CopyRecorded)


def copies_read(
    database: Database, read: Mapping[str, Iterable[Event]], originals: Mapping[str, Sequence[str]]
) -> set[str]:
    """The ids of the copies that copied journals tell of: of files whose originals are there, or were removed by gc.

    `read` are the events of each copied journal; `originals` are the journals that they were copied from.
    """
    told = [event.file for events in read.values() for event in events if isinstance(event, FileRecorded)]
    return {copy for copy, some in originals_of(database, told, originals).items() if any(map(_may_be_original, some))}


def originals_of(
    database: Database, some: Iterable[Checkpoint], originals: Mapping[str, Sequence[str]]
) -> dict[str, list[Checkpoint]]:
    """The records of the files that these were copied from with their journals, by the ids of the copies.

    They have the same place in the directory of an original. Their times do not count: a look at the originals may
    have recorded other ones. Only those that are complete, or that gc removed.
    """
    homes: dict[str, set[str]] = {}
    for copy, older in originals.items():
        homes.setdefault(jsonl.directory_of(copy), set()).update(map(jsonl.directory_of, older))
    ids: dict[str, list[str]] = {}
    for file in some:
        home = jsonl.nearest(file.path, homes)
        place = below(home, file.path)
        ids[file.id] = [replace(file, path=f"{each.rstrip('/')}/{place}").id for each in sorted(homes.get(home, ()))]
    asked = {each for own in ids.values() for each in own}
    if not asked:
        return {}
    with database.read() as connection:
        found = {file.id: file for file in directories.there_or_removed(connection, asked)}
    return {own: [found[each] for each in own_ids if each in found] for own, own_ids in ids.items()}


def is_original(file: Checkpoint) -> bool:
    """Whether a recorded file is at its path, or was removed from there by gc: a file that is alike is then a copy.

    A file that is gone with its directory is no original: the directory was moved.
    """
    if file.state is not FileState.COMPLETE:
        return file.state is FileState.TRASHED and not absence_beside(file)
    here = files.facts_if_seen(file.path)
    try:
        return here is not None and compare(file, files.against(file.path, file, here)) is Sighting.SAME
    except OSError:
        return False


def _may_be_original(file: Checkpoint) -> bool:
    """Whether the recorded directory has a file of the recorded size at the path, or gc removed the file from there.

    The time does not count: a file that was copied away and back has another one.
    """
    if absence_beside(file):
        return False
    here = files.facts_if_seen(file.path)
    return file.state is not FileState.COMPLETE or (here is not None and here.size == file.size)
