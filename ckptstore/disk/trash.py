"""Moves files into the trash, back out of it, and deletes them: never through a link, never over another file.

The trash is below the checkpoints' own directory, so on the same file system: `.ckptstore/trash/{gc}/{path below it}`.
Everything happens relative to directories that were opened without following links: a directory that becomes a link
meanwhile leads nowhere. A file that is not of the recorded size and time is another file, and is left alone.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from contextlib import suppress
from enum import Enum
from stat import S_ISREG
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.disk.claims import FOLDER, NO_LINKS
from ckptstore.disk.files import DIRECTORY, FileFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_TRASH = (FOLDER, "trash")
_OPEN_FOLDERS = 64
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HEAD = 64  # bytes
_NOT_OURS = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR, errno.ELOOP)
"""Why a directory is not removed: it is not empty, in use, or none: a file or a link in its place."""


class TrashResult(str, Enum):
    """What became of a file: done as asked; gone; not the recorded one any more; or another one is in its place.

    `IN_PLACE` is one that was to be deleted from the trash and is where it was before.
    """

    DONE = "done"
    GONE = "gone"
    CHANGED = "changed"
    OCCUPIED = "occupied"
    IN_PLACE = "in_place"

    __str__ = str.__str__


class Found(NamedTuple):
    """A file that is there: its size and time, whose it is, its device and inode, and how it begins."""

    facts: FileFacts
    owner: int
    identity: tuple[int, int]
    head: bytes


class Disk:
    """The system calls that change a directory, one each. Tests put another one here, to stop between any two."""

    make_folder = staticmethod(os.mkdir)
    rename = staticmethod(os.rename)
    link = staticmethod(os.link)
    unlink = staticmethod(os.unlink)
    remove_folder = staticmethod(os.rmdir)


class Trash:
    """The trash of one gc, in every root that it collects from. To be closed: it holds directories open.

    A place is a path below its root, of names only. Every method raises `OSError` for what the file system refuses, a
    directory that is a link among it, in any part of the path, and then nothing has happened. Each can be repeated.
    `identities` are the devices and inodes of files by path, where they are known: no other file moves.
    """

    def __init__(self, collection: str, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()
        self._inside = (*_TRASH, collection)
        self.identities: Mapping[str, tuple[int, int]] = {}
        self._folders: OrderedDict[tuple[str, tuple[str, ...]], int] = OrderedDict()

    def __enter__(self) -> Trash:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close what is open."""
        for folder in self._folders.values():
            os.close(folder)
        self._folders.clear()

    def look(self, root: str, place: str, *, inside: bool = False) -> FileFacts | None:
        """Size and time of the file at a place, or `inside` the trash; None if there is none.

        Raises `OSError` for what is no regular file.
        """
        folders, name = _split(place)
        try:
            return _facts(name, self._open(root, (*self._inside, *folders) if inside else folders))
        except FileNotFoundError:
            return None

    def find(self, root: str, place: str, *, inside: bool = False) -> Found | None:
        """The file at a place, or `inside` the trash; None if there is none. Raises `OSError` for what is no file."""
        folders, name = _split(place)
        try:
            file = os.open(name, _FILE, dir_fd=self._open(root, (*self._inside, *folders) if inside else folders))
        except FileNotFoundError:
            return None
        try:
            status = os.fstat(file)
            if not S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            facts = FileFacts(status.st_size, status.st_mtime_ns)
            return Found(facts, status.st_uid, (status.st_dev, status.st_ino), os.read(file, _HEAD))
        finally:
            os.close(file)

    def put(self, root: str, place: str, expected: FileFacts) -> TrashResult:
        """Move a file into the trash."""
        folders, name = _split(place)
        here = self.look(root, place)
        if here != expected or self.look(root, place, inside=True) is not None:
            return self.halt(root, place, expected)
        inside = self._make(root, (*self._inside, *folders))
        source = self._open(root, folders)
        self._disk.rename(name, name, src_dir_fd=source, dst_dir_fd=inside)
        planned = self.identities.get(f"{root.rstrip('/')}/{place}")
        if _facts(name, inside) != expected or planned not in (None, _identity(name, inside)):
            # another file was put there between our look and the move: back with it
            self._return(name, inside, source)
            return TrashResult.CHANGED
        return TrashResult.DONE

    def halt(self, root: str, place: str, expected: FileFacts) -> TrashResult:
        """What became of a file that was to be moved or deleted: in the trash, gone, or at its place, as is any other.

        Another file that came into the trash for it goes back. Where the trash cannot be used, what is at its place is
        as it was.
        """
        folders, name = _split(place)
        here = self.look(root, place)
        try:
            there = self.look(root, place, inside=True)
        except OSError:
            if here is None:
                raise
            return TrashResult.CHANGED
        if there == expected:
            return TrashResult.DONE
        if here is None and there is not None:
            self._return(name, self._open(root, (*self._inside, *folders)), self._make(root, folders))
            return TrashResult.CHANGED
        return TrashResult.GONE if here is None else TrashResult.CHANGED

    def take_back(self, root: str, place: str, expected: FileFacts) -> TrashResult:
        """Move a file out of the trash to where it was, if it is not there: the trash may never have been usable."""
        folders, name = _split(place)
        here = self.look(root, place)
        try:
            there = self.look(root, place, inside=True)
        except OSError:
            if here != expected:
                raise
            return TrashResult.DONE
        if there is None:
            return TrashResult.DONE if here == expected else TrashResult.GONE
        inside = self._open(root, (*self._inside, *folders))
        home = self._make(root, folders)
        if here is not None and not _is_same(name, inside, home):
            return TrashResult.OCCUPIED
        return TrashResult.DONE if self._return(name, inside, home) else TrashResult.OCCUPIED

    def purge(self, root: str, place: str, expected: FileFacts) -> TrashResult:
        """Delete a file that is in the trash. One that is at its place, as where undo is not known of, stays."""
        folders, name = _split(place)
        there = self.look(root, place, inside=True)
        if there is None:
            return TrashResult.IN_PLACE if self.look(root, place) == expected else TrashResult.GONE
        if there != expected:
            return TrashResult.CHANGED
        self._disk.unlink(name, dir_fd=self._open(root, (*self._inside, *folders)))
        return TrashResult.DONE

    def delete(self, root: str, place: str, expected: FileFacts) -> TrashResult:
        """Delete a file where it is."""
        here = self.look(root, place)
        if here != expected:
            return TrashResult.GONE if here is None else TrashResult.CHANGED
        folders, name = _split(place)
        self._disk.unlink(name, dir_fd=self._open(root, folders))
        return TrashResult.DONE

    def remove_empty(self, root: str, places: Sequence[str], *, inside: bool = False) -> None:
        """Remove the directories between the root and these that nothing is left in; the root stays.

        `inside`: those of the trash in which these were. Others' trash and what else is there stays.
        """
        for folders in sorted({_split(place)[0] for place in places}, reverse=True):
            if inside:
                self._remove_upwards(root, (*self._inside, *folders), keep=1)
            else:
                self._remove_upwards(root, folders, keep=0)

    def _return(self, name: str, inside: int, home: int) -> bool:
        """Move a file back without replacing another one; False if one is there."""
        try:
            self._disk.link(name, name, src_dir_fd=inside, dst_dir_fd=home, follow_symlinks=False)
        except FileExistsError:
            if not _is_same(name, inside, home):
                return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if _facts(name, home) is not None:
                return False
            self._disk.rename(name, name, src_dir_fd=inside, dst_dir_fd=home)
            return True
        self._disk.unlink(name, dir_fd=inside)
        return True

    def _remove_upwards(self, root: str, folders: tuple[str, ...], *, keep: int) -> None:
        while len(folders) > keep:
            try:
                above = self._open(root, folders[:-1])
                self._disk.remove_folder(folders[-1], dir_fd=above)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in _NOT_OURS:
                    return
                raise
            opened = self._folders.pop((root, folders), None)
            if opened is not None:
                os.close(opened)
            folders = folders[:-1]

    def _open(self, root: str, folders: tuple[str, ...]) -> int:
        """The directory below a root, by its names one after the other: none of them may be a link, nor the root."""
        found = self._folders.get((root, folders))
        if found is not None:
            self._folders.move_to_end((root, folders))
            return found
        if folders:
            opened = os.open(folders[-1], DIRECTORY, dir_fd=self._open(root, folders[:-1]))
        else:
            opened = self._reach(root)
        self._folders[root, folders] = opened
        while len(self._folders) > _OPEN_FOLDERS:
            _, oldest = self._folders.popitem(last=False)
            os.close(oldest)
        return opened

    def _reach(self, root: str) -> int:
        """A root, from "/" on: each directory on the way is opened in the one above, and kept for its neighbours."""
        above, _, name = root.rstrip("/").rpartition("/")
        if not name:
            return os.open("/", DIRECTORY)
        try:
            return os.open(name, DIRECTORY, dir_fd=self._open(above or "/", ()))
        except FileNotFoundError:  # not as a file that is gone: the disk it is on may not be mounted
            raise OSError(errno.ENODEV, "its directory is not there: it may not be mounted") from None

    def _make(self, root: str, folders: tuple[str, ...]) -> int:
        """The directory below a root, made if it is not there."""
        try:
            return self._open(root, folders)
        except FileNotFoundError:
            if not folders:
                raise
        above = self._make(root, folders[:-1])
        with suppress(FileExistsError):
            self._disk.make_folder(folders[-1], dir_fd=above)
        return self._open(root, folders)


def _facts(name: str, folder: int) -> FileFacts | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return FileFacts(status.st_size, status.st_mtime_ns)


def _identity(name: str, folder: int) -> tuple[int, int]:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return status.st_dev, status.st_ino


def _is_same(name: str, folder: int, other: int) -> bool:
    """Whether two directories have one file under this name: a link that was made before a crash."""
    return _identity(name, folder) == _identity(name, other)


def _split(place: str) -> tuple[tuple[str, ...], str]:
    """The directories and the name of a place. Raises `OSError` for one that would lead out of its root."""
    *folders, name = place.split("/")
    if any(part in ("", ".", "..") for part in (*folders, name)):
        raise OSError(errno.EINVAL, "not a path below its directory")
    return tuple(folders), name
