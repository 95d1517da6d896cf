"""The trash: checkpoints move into it, back out of it, or are deleted; never through a link, or over another file.

It is below the checkpoints' own directory, so on the same file system: `.ckptstore/trash/{gc}/{path below it}`.
Everything happens relative to directories that were opened without following links. A file that is not of the recorded
size and time is another file, and is left alone.

A checkpoint of several files moves as a whole, or not at all. A directory moves by one rename. The index of a prefix
moves first, and comes back last: without it there is no checkpoint, so an interrupted move can be ended either way. A
purge begins by making the files no checkpoint: a directory is renamed `.ckptstore`, a name that no place has; a prefix
loses its index.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from contextlib import suppress
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core import naming
from ckptstore.core.model import Location
from ckptstore.core.naming import INDEX, TENSORFLOW
from ckptstore.disk import several
from ckptstore.disk.files import DIRECTORY, FileFacts, readable
from ckptstore.disk.name_claims import FOLDER, NO_LINKS
from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

_TRASH = (FOLDER, "trash")
_OPEN_FOLDERS = 64
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HEAD = 64  # bytes
_KEEPS_DIRECTORY = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR, errno.ELOOP)

_GONE = "it is gone"
_IN_PLACE = "it is at its place"
_CHANGED = "it changed since it was recorded"
_OCCUPIED = "another file is at its place now, so this one stays in the trash: move the other file away, and try again"
_ANOTHER = "the trash has another file of that name: undo brings that one back"


class Settled(NamedTuple):
    """Where a file is now, and why it is not where it was wanted (empty: it is there)."""

    at: Location
    reason: str = ""


class Found(NamedTuple):
    """A file that is there, or several that are one checkpoint."""

    facts: FileFacts
    format: str  # empty for a single file
    statuses: Mapping[str, os.stat_result]  # by name; a directory has its own too, named ""
    head: bytes = b""  # how a single file begins

    @property
    def owners(self) -> set[int]:
        """The numbers of the users who own it."""
        return {status.st_uid for status in self.statuses.values()}

    @property
    def identity(self) -> tuple[int, ...]:
        """Device and inode of each file: no other checkpoint has the same."""
        return tuple(number for _, each in sorted(self.statuses.items()) for number in (each.st_dev, each.st_ino))


class _Case(NamedTuple):
    """A file to settle, and the files at its place and in the trash."""

    root: str
    place: str
    expected: FileFacts
    here: Found | None
    there: Found | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        return _split(self.place)[0]

    @property
    def name(self) -> str:
        return _split(self.place)[1]

    @property
    def is_here(self) -> bool:
        return self.here is not None and self.here.facts == self.expected


class Trash:
    """The trash of one gc, in every root that it collects from. To be closed: it holds directories open.

    A place is a path below its root, without "." or "..". Every method raises `OSError` if the file system refuses it,
    or if any part of the path is a link: then nothing has happened. Each can be repeated.
    """

    def __init__(self, collection: str) -> None:
        self._inside = (*_TRASH, collection)
        self.identities: Mapping[str, tuple[int, ...]] = {}  # of the files to take, by path: no other file is taken
        self._folders: OrderedDict[tuple[str, tuple[str, ...]], int] = OrderedDict()

    def __enter__(self) -> Trash:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the open directories."""
        for folder in self._folders.values():
            os.close(folder)
        self._folders.clear()

    def find(self, root: str, place: str, *, inside: bool = False) -> Found | None:
        """The file at a place, or `inside` the trash, where it may be half purged; None if there is none.

        Raises `OSError` unless it is a regular file, or several.
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

    def settle(self, root: str, place: str, expected: FileFacts, wanted: Location, *, takes: bool = False) -> Settled:
        """Bring a checkpoint to where it is wanted, and complete the move of a process that died. Can be repeated.

        The checkpoint leaves its place only if `takes` is given: the run may need it again since its removal was
        recorded. To delete several files from their place, move them to the trash first, by a call of its own.
        """
        case = _Case(root, place, expected, self._at(root, place))
        if takes and case.is_here and wanted is Location.GONE:
            return self._delete_in_place(case)  # without the trash: the disk may be full
        try:
            case = case._replace(there=self._at(root, place, inside=True))
        except OSError:
            if takes or wanted is Location.GONE or not case.is_here:
                raise
            return Settled(Location.HOME, "" if wanted is Location.HOME else _IN_PLACE)  # the trash was never usable
        if case.there is None:
            return self._settle_at_home(case, wanted, takes=takes)
        if wanted is Location.HOME:
            return self._bring_back(case)
        if wanted is Location.GONE:
            return self._purge(case)
        return Settled(Location.TRASH) if case.there.facts == expected else self._sort_out(case)

    def _delete_in_place(self, case: _Case) -> Settled:
        if case.here is None or case.here.format:
            raise OSError(errno.EINVAL, "several files are deleted by way of the trash")
        if not self._is_planned(case, case.here):
            return Settled(Location.HOME, _CHANGED)
        os.unlink(case.name, dir_fd=self._open(case.root, case.folders))
        return Settled(Location.GONE)

    def _settle_at_home(self, case: _Case, wanted: Location, *, takes: bool) -> Settled:
        """Settle a checkpoint that is not in the trash, except perhaps for files that a purge has begun to delete."""
        if case.here is None:
            was_purged = self._clear(case)
            return Settled(Location.GONE, "" if wanted is Location.GONE and was_purged else _GONE)
        if case.is_here and takes and wanted is Location.TRASH:
            return self._take(case, case.here)
        if case.is_here:
            return Settled(Location.HOME, "" if wanted is Location.HOME else _IN_PLACE)
        never_left = takes or wanted is Location.TRASH
        return Settled(Location.HOME, _CHANGED) if never_left else Settled(Location.GONE, _GONE)

    def _take(self, case: _Case, here: Found) -> Settled:
        """Move a checkpoint into the trash."""
        inside, home = self._make(case.root, (*self._inside, *case.folders)), self._open(case.root, case.folders)
        self._move(case.name, _in_order(case.name, here), home, inside)
        there = _at(case.name, inside)
        if there is None or there.facts != case.expected or not self._is_planned(case, there):
            self._return(case.name, inside, home)  # another file was put there between our look and the move
            return Settled(Location.HOME, _CHANGED)
        return Settled(Location.TRASH)

    def _sort_out(self, case: _Case) -> Settled:
        """Settle a wrong file in the trash: another file goes back; to a part of a prefix, the rest is moved."""
        name, inside, home = case.name, self._open_inside(case), self._make(case.root, case.folders)
        is_prefix = case.there is not None and case.there.format == TENSORFLOW
        rest = _prefixed(name, home) if case.here is None and is_prefix else {}
        moved = case.there.statuses if case.there is not None else {}
        if _found(TENSORFLOW, {**rest, **moved}).facts == case.expected and not rest.keys() & moved.keys():
            self._move(name, sorted(rest), home, inside)
            return Settled(Location.TRASH)
        if (case.here is None or _is_same(name, inside, home)) and not self._return(name, inside, home):
            raise OSError(errno.EEXIST, "a part of it is in the trash, and another file at its place")
        return Settled(Location.HOME, _CHANGED)

    def _bring_back(self, case: _Case) -> Settled:
        name, inside, home = case.name, self._open_inside(case), self._make(case.root, case.folders)
        if (case.here is None or _is_same(name, inside, home)) and self._return(name, inside, home):
            return Settled(Location.HOME)
        return Settled(Location.TRASH, _OCCUPIED)

    def _purge(self, case: _Case) -> Settled:
        """Delete a checkpoint in the trash."""
        if case.there is None or case.there.facts != case.expected:
            return Settled(Location.TRASH, _ANOTHER)
        name, inside = case.name, self._open_inside(case)
        if case.there.format != naming.DIRECTORY:
            self._delete_files(_in_order(name, case.there), inside)
            return Settled(Location.GONE)
        os.rename(name, FOLDER, src_dir_fd=inside, dst_dir_fd=inside)
        renamed = _at(FOLDER, inside)
        if renamed is None or not self._is_planned(case, renamed):
            os.rename(FOLDER, name, src_dir_fd=inside, dst_dir_fd=inside)
            return Settled(Location.TRASH, _ANOTHER)
        self._delete_folder(inside)
        return Settled(Location.GONE)

    def sync_home(self, root: str, places: Iterable[str]) -> None:
        """Sync the directories above these places to the disk: a power failure then leaves nothing in the trash."""
        for folders in {_split(place)[0] for place in places}:
            with readable(self._open(root, folders)) as opened:
                os.fsync(opened)

    def remove_empty(self, root: str, places: Iterable[str]) -> None:
        """Remove the directories above these places that are empty, here and in the trash; the root stays."""
        for folders in sorted({_split(place)[0] for place in places}, reverse=True):
            self._remove_upwards(root, folders, keep=0)
            self._remove_upwards(root, (*self._inside, *folders), keep=1)

    def _at(self, root: str, place: str, *, inside: bool = False) -> Found | None:
        folders, name = _split(place)
        try:
            return _at(name, self._open(root, (*self._inside, *folders) if inside else folders))
        except FileNotFoundError:
            return None

    def _is_planned(self, case: _Case, found: Found) -> bool:
        return self.identities.get(f"{case.root.rstrip('/')}/{case.place}") in (None, found.identity)

    def _open_inside(self, case: _Case) -> int:
        return self._open(case.root, (*self._inside, *case.folders))

    def _move(self, name: str, names: Iterable[str], home: int, inside: int) -> None:
        """Move the files of a checkpoint into the trash; if one cannot be moved, the others go back."""
        try:
            for each in names:
                os.rename(each, each, src_dir_fd=home, dst_dir_fd=inside)
        except OSError:
            self._return(name, inside, home)
            raise

    def _return(self, name: str, inside: int, home: int) -> bool:
        """Move a checkpoint back from the trash, without replacing anything; False if another file is there."""
        there = _at(name, inside)
        if there is None:
            return True
        if there.format == naming.DIRECTORY:  # that replaces nothing but an empty directory
            os.rename(name, name, src_dir_fd=inside, dst_dir_fd=home)
            return True
        names = _in_order(name, there)[::-1]
        if len(names) > 1 and not all(_is_free(each, home) or _is_same(each, inside, home) for each in names):
            return False
        return all(self._return_file(each, inside, home) for each in names)

    def _return_file(self, name: str, inside: int, home: int) -> bool:
        try:
            os.link(name, name, src_dir_fd=inside, dst_dir_fd=home, follow_symlinks=False)
        except FileExistsError:
            if not _is_same(name, inside, home):
                return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if not _is_free(name, home):
                return False
            os.rename(name, name, src_dir_fd=inside, dst_dir_fd=home)
            return True
        os.unlink(name, dir_fd=inside)
        return True

    def _rest(self, root: str, place: str) -> dict[str, os.stat_result]:
        """The files that a purge has begun to delete: of this place, or of another place in the same directory."""
        folders, name = _split(place)
        try:
            inside = self._open(root, (*self._inside, *folders))
        except FileNotFoundError:
            return {}
        renamed = {} if _is_free(FOLDER, inside) else dict(several.below(FOLDER, inside))
        return {**_prefixed(name, inside), **renamed}

    def _clear(self, case: _Case) -> bool:
        """Delete the files that a purge has begun to delete; False if there are none."""
        rest = self._rest(case.root, case.place)
        if rest:
            if not self._is_planned(case, _found(naming.DIRECTORY, rest)):
                raise OSError(errno.EBUSY, "the trash has changed since it was listed")
            inside = self._open_inside(case)
            self._delete_files(_prefixed(case.name, inside), inside)
            if not _is_free(FOLDER, inside):
                self._delete_folder(inside)
        return bool(rest)

    def _delete_files(self, names: Iterable[str], folder: int) -> None:
        for each in names:
            os.unlink(each, dir_fd=folder)

    def _delete_folder(self, above: int) -> None:
        """Delete the directory that was renamed, with all that is in it."""
        for _, folders, names, opened in os.fwalk(FOLDER, topdown=False, onerror=several.refuse, dir_fd=above):
            self._delete_files(names, opened)
            for each in folders:
                os.rmdir(each, dir_fd=opened)
        os.rmdir(FOLDER, dir_fd=above)

    def _remove_upwards(self, root: str, folders: tuple[str, ...], *, keep: int) -> None:
        while len(folders) > keep:
            try:
                above = self._open(root, folders[:-1])
                os.rmdir(folders[-1], dir_fd=above)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in _KEEPS_DIRECTORY:
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
        except FileNotFoundError:  # not as for a missing file: its disk may not be mounted
            raise OSError(errno.ENODEV, "its directory is not there: perhaps it is not mounted") from None

    def _make(self, root: str, folders: tuple[str, ...]) -> int:
        """The directory below a root, made if it is not there."""
        try:
            return self._open(root, folders)
        except FileNotFoundError:
            if not folders:
                raise
        above = self._make(root, folders[:-1])
        with suppress(FileExistsError):
            os.mkdir(folders[-1], dir_fd=above)
        return self._open(root, folders)


def _at(name: str, folder: int) -> Found | None:
    """The checkpoint in a directory under this name; None if there is none. Raises `OSError` if it is no checkpoint."""
    status = several.status_in(folder, name)
    if status is None:
        return None if _is_free(f"{name}{INDEX}", folder) else _found(TENSORFLOW, _prefixed(name, folder))
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
    """The files to move, the index first."""
    index = f"{name}{INDEX}"
    return sorted(found.statuses, key=lambda each: (each != index, each)) if found.format == TENSORFLOW else [name]


def _prefixed(prefix: str, folder: int) -> dict[str, os.stat_result]:
    with readable(folder) as opened:
        return dict(several.prefixed(prefix, opened))


def _is_free(name: str, folder: int) -> bool:
    return several.status_in(folder, name) is None


def _is_same(name: str, folder: int, other: int) -> bool:
    """Whether two directories have one file under this name, or one index: a link that was made before a crash."""
    of = several.status_in
    one, another = (of(each, name) or of(each, f"{name}{INDEX}") for each in (folder, other))
    return one is not None and another is not None and os.path.samestat(one, another)


def _split(place: str) -> tuple[tuple[str, ...], str]:
    """The directories and the name of a place. Raises `OSError` for one that would lead out of its root."""
    *folders, name = place.split("/")
    if any(part in ("", ".", "..", FOLDER) for part in (*folders, name)):
        raise OSError(errno.EINVAL, "not a path below its directory")
    return tuple(folders), name
