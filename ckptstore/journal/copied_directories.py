"""Tells the files of a directory that was copied with its journals, as by `cp -r`, from their originals."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ckptstore.catalog import directories
from ckptstore.core.model import FileState
from ckptstore.core.sighting import is_as_recorded
from ckptstore.disk import files
from ckptstore.disk.presence import absence_beside, directory_of, identity_path
from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint


def but_for_path(file: Checkpoint) -> tuple[object, ...]:
    """The values that the records of a file and of its copy share."""
    return file.save_id, file.rank, file.size, file.mtime_ns


def age_of(file: Checkpoint) -> tuple[int, int, str]:
    """A sort key of files whose records differ only in their paths: the original has the lowest.

    It is in the directory that got its identity first, by the ctime of the identity's file. `cp -a` copies other times,
    but not the ctime.
    """
    depth = file.path.count("/")  # without an identity: a backup below a directory is the copy
    try:
        found = os.stat(identity_path(directory_of(file.path), file.directory_id))
    except OSError:
        return 0, depth, file.path
    return found.st_ctime_ns, depth, file.path


def is_original(file: Checkpoint) -> bool:
    """Whether a recorded file is at its path, or was removed from there by gc: a file that is alike is then a copy.

    A file that is gone with its directory is no original: the directory was moved.
    """
    if file.state is FileState.COMPLETE:
        here = files.facts_if_seen(file.path)
        return here is not None and is_as_recorded(file, here.size, here.mtime_ns)
    return not absence_beside(file)


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
