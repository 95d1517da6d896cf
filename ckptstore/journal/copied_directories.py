"""Tells a directory that was copied with its journals, as by `cp -r`, from the original.

No journal has the name of another one. So a journal is a copy if one of its name is in another directory. Of a copied
journal only the records of files count, and each only if its original is gone: the run does not save in the copy, and
what retention moved to a trash there is the user's.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from ckptstore.catalog import directories
from ckptstore.core.events import (
    CopyRecorded,
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
from ckptstore.disk.presence import absence_beside, directory_of, identity_of, identity_path
from ckptstore.journal import jsonl
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Database
    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint
    from ckptstore.disk.trust import Trust


def but_for_path(file: Checkpoint) -> tuple[object, ...]:
    """The values that the records of a file and of its copy share."""
    return file.save_id, file.rank, file.size, file.mtime_ns


Age: TypeAlias = tuple[bool, int, int, str]
"""A sort key of a directory or its files among those that are alike: the original has the lowest."""


def age_of(file: Checkpoint) -> Age:
    """The key of a file among files whose records differ only in their paths.

    A backup below a directory is the copy, even if it seems to be older: the clocks of machines differ. Else the
    original is in the directory that got its identity first, by the ctime of the identity's file. `cp -a` copies other
    times, but not the ctime.
    """
    return _age(directory_of(file.path), file.directory_id, file.path)


def _age(directory: str, identity: str, path: str) -> Age:
    depth = path.count("/")  # without an identity: a backup below a directory is the copy
    try:
        found = os.stat(identity_path(directory, identity))
    except OSError:
        return False, 0, depth, path
    above = Path(directory).parents
    return any(os.path.exists(identity_path(str(each), identity)) for each in above), found.st_ctime_ns, depth, path


def copied_journals(paths: AbstractSet[str], known: Iterable[str], trust: Trust) -> set[str]:
    """Which of these journals are copies: of one that the catalog knows, or of an older one among them.

    `known` are the journals that have their names. The original is there, and its owner is the copy's or is trusted:
    else any user could make the journals of others copies.
    """
    named = grouped((path.rpartition("/")[2], path) for path in (*paths, *known))
    age = cache(_age_of_directory)
    copies: set[str] = set()
    for some in (each for each in named.values() if len(each) > 1):
        there = [path for path in some if files.identity(path) is not None]
        if len(there) > 1:  # in a tree that was moved, the known ones are gone
            there.sort(key=lambda path: (path in paths, age(jsonl.directory_of(path))))
        for at, path in enumerate(there):
            if path in paths and any(_is_copy(path, other, trust) for other in there[:at]):
                copies.add(path)
    return copies


def _age_of_directory(directory: str) -> Age:
    return _age(directory, identity_of(directory), directory)


def _is_copy(path: str, original: str, trust: Trust) -> bool:
    """Whether a journal is another file than one that a trusted user owns: one file may have two mounts."""
    try:
        owner, of_original = os.lstat(path).st_uid, os.lstat(original).st_uid
    except OSError:
        return False
    may_tell = of_original == owner or trust.is_full(of_original)
    return may_tell and files.identity(path) != files.identity(original)


def of_copy(event: Event) -> Event | None:
    """What an event of a copied journal tells; None: nothing, since it is about the original's directory."""
    if isinstance(event, LaunchStarted):
        return replace(event, at=None, plan=(), passed=(), launch=event.launch.undecided())
    return None if isinstance(event, _OF_DIRECTORY) else event


_OF_DIRECTORY = (SourceAdded, FileUnplaced, LoadOutcome, LayoutFileKept, FilesRemoved, CopyRecorded)


def is_original(file: Checkpoint) -> bool:
    """Whether a recorded file is at its path, or was removed from there by gc: a file that is alike is then a copy.

    A file that is gone with its directory is no original: the directory was moved.
    """
    if file.state is not FileState.COMPLETE:
        return not absence_beside(file)
    here = files.facts_if_seen(file.path)
    try:
        return here is not None and compare(file, files.against(file.path, file, here)) is Sighting.SAME
    except OSError:
        return False


def copies_in(database: Database, ids: Sequence[str]) -> list[Checkpoint]:
    """Which of these new records are of copies: the original is in another directory, or gc removed it from there.

    The original is the file that was known before. If both are new, it is the file that is as recorded, or the older
    one.
    """
    alike: dict[tuple[object, ...], list[Checkpoint]] = defaultdict(list)
    with database.read() as connection:
        for file in directories.alike_but_for_path(connection, ids):
            alike[but_for_path(file)].append(file)
    new = frozenset(ids)
    return [copy for some in alike.values() for copy in _copies_among(some, new)]


def _copies_among(alike: Sequence[Checkpoint], new: AbstractSet[str]) -> Iterator[Checkpoint]:
    originals = list(filter(_may_be_original, alike))
    if not originals:
        return
    first = min(originals, key=lambda file: (file.id in new, not is_original(file), age_of(file)))
    for file in alike:
        is_elsewhere = directory_of(file.path) != directory_of(first.path)
        is_alike = None in (file.digest, first.digest) or file.digest == first.digest
        is_another = files.identity(file.path) not in (None, files.identity(first.path))  # one file has two mounts
        if file.id in new and file.state is FileState.COMPLETE and is_elsewhere and is_alike and is_another:
            yield file


def _may_be_original(file: Checkpoint) -> bool:
    """Whether the recorded directory has a file of the recorded size at the path, or gc removed the file from there.

    The time does not count: a file that was copied away and back has another one.
    """
    if absence_beside(file):
        return False
    here = files.facts_if_seen(file.path)
    return file.state is not FileState.COMPLETE or (here is not None and here.size == file.size)
