"""Moves checkpoints into the trash, back out of it, and deletes them: never through a link, never over another file.

The trash is below the checkpoints' own directory, so on the same file system: `.ckptstore/trash/{gc}/{path below it}`.
Everything happens relative to directories that were opened without following links: a directory that becomes a link
meanwhile leads nowhere. A file that is not of the recorded size and time is another file, and is left alone.

Of several files all go, or none. A directory goes by one rename of its own. Of a prefix the index goes first and comes
back last: without it there is no checkpoint, and whoever comes after a crash ends it either way. What is purged is
first made what nobody takes for one: a directory is renamed `.ckptstore`, which no place may be called; of a prefix the
index is deleted first.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from contextlib import suppress
from enum import Enum
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core import naming
from ckptstore.core.naming import INDEX, TENSORFLOW
from ckptstore.disk import several
from ckptstore.disk.claims import FOLDER, NO_LINKS
from ckptstore.disk.files import DIRECTORY, FileFacts
from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
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
    """A file that is there, or several that are one checkpoint: their size and time, and the status of each by name.

    `format` is empty for a single file, of which `head` is how it begins. A directory has its own status, named "", and
    that of each one in it.
    """

    facts: FileFacts
    format: str
    statuses: Mapping[str, os.stat_result]
    head: bytes = b""

    @property
    def owners(self) -> set[int]:
        """Whose it is, by number."""
        return {status.st_uid for status in self.statuses.values()}

    @property
    def identity(self) -> tuple[int, ...]:
        """What no other one has: device and inode of each."""
        return tuple(number for _, each in sorted(self.statuses.items()) for number in (each.st_dev, each.st_ino))


class Disk:
    """The system calls that change a directory, one each. Tests put another one here, to stop between any two."""

    @staticmethod
    def make_folder(name: str, *, dir_fd: int) -> None:
        """As `os.mkdir`."""
        os.mkdir(name, dir_fd=dir_fd)

    @staticmethod
    def rename(name: str, new_name: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        """As `os.rename`."""
        os.rename(name, new_name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    @staticmethod
    def link(name: str, new_name: str, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
        """As `os.link`."""
        os.link(name, new_name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)

    @staticmethod
    def unlink(name: str, *, dir_fd: int) -> None:
        """As `os.unlink`."""
        os.unlink(name, dir_fd=dir_fd)

    @staticmethod
    def remove_folder(name: str, *, dir_fd: int) -> None:
        """As `os.rmdir`."""
        os.rmdir(name, dir_fd=dir_fd)


class Trash:
    """The trash of one gc, in every root that it collects from. To be closed: it holds directories open.

    A place is a path below its root, of names only. Every method raises `OSError` for what the file system refuses, a
    directory that is a link among it, in any part of the path, and then nothing has happened. Each can be repeated.
    `identities` are those of what was found before, by path: nothing else moves, and no other directory is purged.
    """

    def __init__(self, collection: str, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()
        self._inside = (*_TRASH, collection)
        self.identities: Mapping[str, tuple[int, ...]] = {}
        self._folders: OrderedDict[tuple[str, tuple[str, ...]], int] = OrderedDict()

    def __enter__(self) -> Trash:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close what is open."""
        for folder in self._folders.values():
            os.close(folder)
        self._folders.clear()

    def look(self, root: str, place: str, *, inside: bool = False) -> FileFacts | None:
        """Size and time of what is at a place, or `inside` the trash; None if nothing is.

        Raises `OSError` for what is no regular file, nor several.
        """
        found = self._at(root, place, inside=inside)
        return None if found is None else found.facts

    def find(self, root: str, place: str, *, inside: bool = False) -> Found | None:
        """What is at a place, or `inside` the trash, where it may be half purged; None if nothing is.

        Raises `OSError` for what is no regular file, nor several.
        """
        folders, name = _split(place)
        with suppress(FileNotFoundError):
            file = os.open(name, _FILE, dir_fd=self._open(root, (*self._inside, *folders) if inside else folders))
            try:
                status = os.fstat(file)
                if S_ISREG(status.st_mode):
                    return _one(name, status, os.read(file, _HEAD))
            finally:
                os.close(file)
        found = self._at(root, place, inside=inside)
        if found is None and inside:
            rest = self._rest(root, place)
            return _found(naming.DIRECTORY, rest) if rest else None
        return found

    def put(self, root: str, place: str, expected: FileFacts) -> TrashResult:
        """Move a checkpoint, or another file, into the trash."""
        folders, name = _split(place)
        here = self._at(root, place)
        if here is None or here.facts != expected or self.look(root, place, inside=True) is not None:
            return self.halt(root, place, expected)
        inside = self._make(root, (*self._inside, *folders))
        source = self._open(root, folders)
        self._move(name, _in_order(name, here), source, inside)
        there = _at(name, inside)
        if there is None or there.facts != expected or not self._is_planned(root, place, there):
            # another file was put there between our look and the move: back with it
            self._return(name, inside, source)
            return TrashResult.CHANGED
        return TrashResult.DONE

    def halt(self, root: str, place: str, expected: FileFacts) -> TrashResult:
        """What became of a file that was to be moved or deleted: in the trash, gone, or at its place, as is any other.

        Another file that came into the trash for it goes back. The rest of a prefix follows its index. Where the trash
        cannot be used, what is at its place is as it was.
        """
        folders, name = _split(place)
        here = self.look(root, place)
        try:
            there = self._at(root, place, inside=True)
        except OSError:
            if here is None:
                raise
            return TrashResult.CHANGED
        if there is not None and there.facts == expected:
            return TrashResult.DONE
        if there is not None:
            inside, home = self._open(root, (*self._inside, *folders)), self._make(root, folders)
            rest = _prefixed(name, home) if here is None and there.format == TENSORFLOW else {}
            every = _found(TENSORFLOW, {**rest, **there.statuses})
            if every.facts == expected and not rest.keys() & there.statuses.keys():
                self._move(name, sorted(rest), home, inside)
                return TrashResult.DONE
            if (here is None or _is_same(name, inside, home)) and not self._return(name, inside, home):
                raise OSError(errno.EEXIST, "a part of it is in the trash, and another file at its place")
            return TrashResult.CHANGED
        return TrashResult.GONE if here is None else TrashResult.CHANGED

    def give_back(self, root: str, place: str, expected: FileFacts) -> TrashResult:
        """As `halt`, for what was to be deleted: several files are in the trash on their way, and leave it again."""
        result = self.halt(root, place, expected)
        if result is TrashResult.DONE and self.take_back(root, place, expected) is TrashResult.DONE:
            result = TrashResult.CHANGED
        if result is TrashResult.GONE:
            self._clear(root, place)
        self.remove_empty(root, [place], inside=True)
        return result

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
            if here is None:
                self._clear(root, place)
            return TrashResult.DONE if here == expected else TrashResult.GONE
        inside = self._open(root, (*self._inside, *folders))
        home = self._make(root, folders)
        if here is not None and not _is_same(name, inside, home):
            return TrashResult.OCCUPIED
        return TrashResult.DONE if self._return(name, inside, home) else TrashResult.OCCUPIED

    def purge(self, root: str, place: str, expected: FileFacts) -> TrashResult:
        """Delete what is in the trash. What is at its place, as where undo is not known of, stays."""
        folders, name = _split(place)
        there = self._at(root, place, inside=True)
        if there is None:
            here = self.look(root, place)
            if here is None and self._clear(root, place):
                return TrashResult.DONE
            return TrashResult.IN_PLACE if here == expected else TrashResult.GONE
        if there.facts != expected:
            return TrashResult.CHANGED
        inside = self._open(root, (*self._inside, *folders))
        if there.format != naming.DIRECTORY:
            self._delete_files(_in_order(name, there), inside)
            return TrashResult.DONE
        self._disk.rename(name, FOLDER, src_dir_fd=inside, dst_dir_fd=inside)
        renamed = _at(FOLDER, inside)
        if renamed is None or not self._is_planned(root, place, renamed):
            self._disk.rename(FOLDER, name, src_dir_fd=inside, dst_dir_fd=inside)
            return TrashResult.CHANGED
        self._delete_folder(inside)
        return TrashResult.DONE

    def delete(self, root: str, place: str, expected: FileFacts) -> TrashResult:
        """Delete what is at its place: a file there, several by way of the trash."""
        here = self._at(root, place)
        if here is None or here.facts != expected:
            return TrashResult.GONE if here is None else TrashResult.CHANGED
        if here.format:
            result = self.put(root, place, expected)
            result = self.purge(root, place, expected) if result is TrashResult.DONE else result
            self.remove_empty(root, [place], inside=True)
            return result
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

    def _at(self, root: str, place: str, *, inside: bool = False) -> Found | None:
        folders, name = _split(place)
        try:
            return _at(name, self._open(root, (*self._inside, *folders) if inside else folders))
        except FileNotFoundError:
            return None

    def _is_planned(self, root: str, place: str, found: Found) -> bool:
        return self.identities.get(f"{root.rstrip('/')}/{place}") in (None, found.identity)

    def _move(self, name: str, names: Iterable[str], home: int, inside: int) -> None:
        """Move what belongs to a checkpoint into the trash; if one cannot be moved, what is there goes back."""
        try:
            for each in names:
                self._disk.rename(each, each, src_dir_fd=home, dst_dir_fd=inside)
        except OSError:
            self._return(name, inside, home)
            raise

    def _return(self, name: str, inside: int, home: int) -> bool:
        """Move back what is in the trash without replacing anything; False if another file is there."""
        there = _at(name, inside)
        if there is None:
            return True
        if there.format == naming.DIRECTORY:  # that replaces nothing but an empty directory
            self._disk.rename(name, name, src_dir_fd=inside, dst_dir_fd=home)
            return True
        names = _in_order(name, there)[::-1]
        if len(names) > 1 and not all(_is_free(each, home) or _is_same(each, inside, home) for each in names):
            return False
        return all(self._return_file(each, inside, home) for each in names)

    def _return_file(self, name: str, inside: int, home: int) -> bool:
        try:
            self._disk.link(name, name, src_dir_fd=inside, dst_dir_fd=home, follow_symlinks=False)
        except FileExistsError:
            if not _is_same(name, inside, home):
                return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if not _is_free(name, home):
                return False
            self._disk.rename(name, name, src_dir_fd=inside, dst_dir_fd=home)
            return True
        self._disk.unlink(name, dir_fd=inside)
        return True

    def _rest(self, root: str, place: str) -> dict[str, os.stat_result]:
        """What a purge of several files has begun to delete: here, or of another place in the same directory."""
        folders, name = _split(place)
        try:
            inside = self._open(root, (*self._inside, *folders))
        except FileNotFoundError:
            return {}
        renamed = {} if _is_free(FOLDER, inside) else dict(several.below(FOLDER, inside))
        return {**_prefixed(name, inside), **renamed}

    def _clear(self, root: str, place: str) -> bool:
        """Delete what a purge has begun to delete; whether there is such."""
        folders, name = _split(place)
        rest = self._rest(root, place)
        if rest:
            if not self._is_planned(root, place, _found(naming.DIRECTORY, rest)):
                raise OSError(errno.EBUSY, "what is in the trash has changed since it was looked at")
            inside = self._open(root, (*self._inside, *folders))
            self._delete_files(_prefixed(name, inside), inside)
            if not _is_free(FOLDER, inside):
                self._delete_folder(inside)
        return bool(rest)

    def _delete_files(self, names: Iterable[str], folder: int) -> None:
        for each in names:
            self._disk.unlink(each, dir_fd=folder)

    def _delete_folder(self, above: int) -> None:
        """Delete the directory that was renamed, with all that is in it."""
        for _, folders, names, opened in os.fwalk(FOLDER, topdown=False, onerror=several.refuse, dir_fd=above):
            self._delete_files(names, opened)
            for each in folders:
                self._disk.remove_folder(each, dir_fd=opened)
        self._disk.remove_folder(FOLDER, dir_fd=above)

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


def _at(name: str, folder: int) -> Found | None:
    """What is in a directory under this name; None if nothing is. Raises `OSError` for what is no checkpoint."""
    status = _status(name, folder)
    if status is None:
        index = _status(f"{name}{INDEX}", folder)
        return None if index is None else _found(TENSORFLOW, _prefixed(name, folder))
    if S_ISDIR(status.st_mode):
        found = _found(naming.DIRECTORY, dict(several.below(name, folder)))
        if all(S_ISDIR(each.st_mode) for each in found.statuses.values()):
            raise OSError(errno.EINVAL, several.WITHOUT_FILES)
        return found
    if not S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return _one(name, status)


def _one(name: str, status: os.stat_result, head: bytes = b"") -> Found:
    return Found(FileFacts(status.st_size, status.st_mtime_ns), "", {name: status}, head)


def _found(form: str, statuses: dict[str, os.stat_result]) -> Found:
    files = [each for each in statuses.values() if S_ISREG(each.st_mode)]
    size, mtime_ns = sum(each.st_size for each in files), max((each.st_mtime_ns for each in files), default=0)
    return Found(FileFacts(size, mtime_ns), form, statuses)


def _in_order(name: str, found: Found) -> list[str]:
    """What is moved, the index first."""
    index = f"{name}{INDEX}"
    return sorted(found.statuses, key=lambda each: (each != index, each)) if found.format == TENSORFLOW else [name]


def _prefixed(prefix: str, folder: int) -> dict[str, os.stat_result]:
    opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return dict(several.prefixed(prefix, opened))
    finally:
        os.close(opened)


def _status(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):  # an index would have a longer name
            return None
        raise


def _is_free(name: str, folder: int) -> bool:
    return _status(name, folder) is None


def _is_same(name: str, folder: int, other: int) -> bool:
    """Whether two directories have one file under this name, or one index: a link that was made before a crash."""
    one, another = (_status(name, each) or _status(f"{name}{INDEX}", each) for each in (folder, other))
    return one is not None and another is not None and os.path.samestat(one, another)


def _split(place: str) -> tuple[tuple[str, ...], str]:
    """The directories and the name of a place. Raises `OSError` for one that would lead out of its root."""
    *folders, name = place.split("/")
    if any(part in ("", ".", "..", FOLDER) for part in (*folders, name)):
        raise OSError(errno.EINVAL, "not a path below its directory")
    return tuple(folders), name
