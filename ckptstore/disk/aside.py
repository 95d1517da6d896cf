"""Writes files and directories under temporary paths: they get their names when they are complete and synced.

They never replace another file, unless the caller says so.
"""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager, suppress
from itertools import chain, count
from stat import S_ISREG
from typing import TYPE_CHECKING

from ckptstore.core.ids import derived_id
from ckptstore.core.naming import INDEX, parse_tensorflow
from ckptstore.disk.files import give_name, names_in, remove_own, sync
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.several import members_at, status_of
from ckptstore.errors import RefusedError, UsageError
from ckptstore.outside import Path, fcntl, os, shutil, threading, token_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SAVING = "saving"
_UNFINISHED = "unfinished"
_LONGEST = 255  # bytes of a name
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""The errors of a file system without locks."""
_NAME = re.compile(r"(?P<stem>.+?)(?P<suffixes>(?:\.[A-Za-z]\w*)*)", re.DOTALL)


class Aside:
    """Where a rank of a launch writes what it saves to a directory: a folder of its own beside the journals."""

    def __init__(self, directory: str, run: str, launch: str, rank: int) -> None:
        self.directory = directory
        self._whose = f"rank_{rank}-{derived_id(run, size=8)}-"
        self._folder = Path(directory, FOLDER, _SAVING, f"{self._whose}{derived_id(launch, size=8)}")
        self._in_turn = threading.RLock()  # of threads that save at once: each clears the folder

    def clear_others(self) -> None:
        """Delete the files that earlier launches of the rank left: they ended before this one began."""
        clear_beside(self._folder, self._whose)

    def save(self, name: str, write: Callable[[str], object], before: Callable[[str], object] = lambda _: None) -> str:
        """Call `write` with a path aside, and move what it leaves there into the directory. Returns its new path.

        `write` may leave a file, a directory, or a prefix of TensorFlow. If the name is taken, `_1`, `_2` … is put
        before its suffixes. `before` is called with the new path before the move. Raises what these two raise,
        `UsageError` if `write` left nothing at its path, and `OSError`. Threads that save at once wait for each other.
        """
        with self._in_turn:
            self.clear()
            folder = self._folder
            try:
                folder.mkdir(parents=True)
            except FileExistsError:  # not all of it could be deleted, as a file on NFS that is open
                folder = folder.with_name(f"{folder.name}-{token_hex(4)}")
                folder.mkdir()
            try:
                path = str(folder / name)
                write(path)
                there = names_in(self.directory)
                taken = there | {parsed.prefix for each in there if (parsed := parse_tensorflow(each))}
                final = f"{self.directory}/{next(free for free in _names(name) if free not in taken)}"
                before(final)
                _give(path, final)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        return final

    def clear(self) -> None:
        """Delete the files of a save that never ended."""
        shutil.rmtree(self._folder, ignore_errors=True)


def clear_beside(folder: Path, whose: str) -> None:
    """Delete the folders beside a folder whose names begin with `whose`. Those that cannot be deleted stay."""
    with suppress(OSError):
        for name in names_in(str(folder.parent)):
            if name.startswith(whose) and name != folder.name:
                shutil.rmtree(folder.parent / name, ignore_errors=True)


def _names(name: str) -> chain[str]:
    """A name, and the names to try in turn if it is taken."""
    match = _NAME.fullmatch(name)
    stem, suffixes = match.group("stem", "suffixes") if match else (name, "")
    return chain([name], (f"{stem}_{repeat}{suffixes}" for repeat in count(1)))


def _give(path: str, final: str) -> None:
    """Move a complete checkpoint to its final path. A prefix gets its index last: without it, it is no checkpoint."""
    status = status_of(path)
    parts = [path]
    if status is None or not S_ISREG(status.st_mode):
        members = [each.path for each in members_at(path, status)]
        if not members:
            left = ", ".join(sorted(names_in(str(Path(path).parent))))
            but = f", but {left}" if left else ""
            raise UsageError(f"the function given to save wrote nothing at {path}{but}", "write to that very path")
        parts = sorted(members, key=lambda part: part.endswith(INDEX)) if status is None else parts
    for part in parts:
        _sync_all(part)
    for part in parts:
        _name(part, f"{final}{part.removeprefix(path)}")


@contextmanager
def named_last(target: str) -> Iterator[str]:
    """A temporary path for a file or a directory. At the end of the block, it is synced and renamed to `target`.

    `target` is an absolute path. The temporary path is in a folder beside it that no scan looks into. Files that a
    killed process left there are deleted, now or by the next process that writes this target. Raises `RefusedError` if
    the target exists or another process writes it, and `OSError`.
    """
    with _alone(target) as own:
        _refuse_taken(target)
        os.mkdir(own)
        path = f"{own}/{os.path.basename(target)}"
        yield path
        _finish(path, target)


def named_once(
    target: str, mark: str, write: Callable[[str], object], is_there: Callable[[], bool], *, replaces: bool = False
) -> None:
    """Like `named_last`, but if `write` is killed, its temporary files are there when it is called again.

    Temporary files of another `mark` are deleted. If another process writes the target, this one waits; `is_there` then
    says whether that process has done the work. If this `replaces` another file of this user, that one is deleted while
    no other process writes the target. Raises as `named_last` does.
    """
    with _alone(target, resumes=True) as own:
        if not is_there():
            if replaces and os.path.lexists(target):
                remove_own(*os.path.split(target))
            _refuse_taken(target)
            os.makedirs(own, exist_ok=True)
            for other in names_in(own) - {mark}:
                os.unlink(f"{own}/{other}")
            write(f"{own}/{mark}")
            _finish(f"{own}/{mark}", target)


def clear_unfinished(target: str) -> None:
    """Delete the files that a killed process left beside a target. Raises as `named_last` does."""
    if os.path.lexists(_folder_of(target)):
        with _alone(target):
            pass


@contextmanager
def _alone(target: str, *, resumes: bool = False) -> Iterator[str]:
    """The temporary path of a target, held by this process alone. It does not exist before and after.

    If this process `resumes`, it waits for its turn. The path may exist then, and after an error it stays.
    """
    folder = _folder_of(target)
    own = f"{folder}/{FOLDER}"
    lock = _lock(folder, target, waits=resumes)
    stays = resumes
    try:
        if not resumes:
            shutil.rmtree(own, ignore_errors=True)
        yield own
        stays = False
    finally:
        if not stays:
            shutil.rmtree(own, ignore_errors=True)
            with suppress(OSError):  # the user's own folder of that name has other things in it
                os.rmdir(folder)
        os.close(lock)


def _folder_of(target: str) -> str:
    """The folder beside a target for its temporary files. File systems allow 255 bytes for a name."""
    above, name = os.path.split(target)
    folder = f".{name}.{_UNFINISHED}"
    return f"{above}/{folder if len(os.fsencode(folder)) <= _LONGEST else f'.{derived_id(name)}.{_UNFINISHED}'}"


def _refuse_taken(target: str) -> None:
    if os.path.lexists(target):
        raise RefusedError(f"{target} is there already", "nothing is written over it: give another name")


def _lock(folder: str, target: str, *, waits: bool = False) -> int:
    """Make the folder and lock it until the returned descriptor is closed. Raises `RefusedError` and `OSError`."""
    while True:
        with suppress(FileExistsError):
            os.mkdir(folder)
        try:
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:  # the process that held it has just removed it
            continue
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(opened)
                if not isinstance(error, BlockingIOError):
                    raise
                raise RefusedError(f"{target} is being written by another process", "wait for it") from None
        if _is_at(folder, opened):
            return opened
        os.close(opened)  # the process that held it before has removed it


def _is_at(folder: str, opened: int) -> bool:
    try:
        return os.path.samestat(os.stat(folder, follow_symlinks=False), os.fstat(opened))
    except FileNotFoundError:
        return False


def _sync_all(path: str) -> None:
    """Sync a file, or a directory with all that is in it, to the disk."""
    if not os.path.isdir(path):
        sync(path)
        return
    for each, _, names in os.walk(path, topdown=False):
        for name in names:
            sync(f"{each}/{name}")
        sync(each)


def _finish(path: str, target: str) -> None:
    """Sync a complete file or directory, and give it its name. Raises `RefusedError` if the name is taken."""
    _sync_all(path)
    _refuse_taken(target)
    try:
        _name(path, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            _refuse_taken(target)
        raise


def _name(path: str, target: str) -> None:
    """Give a file or directory its name, never over another one, and sync that."""
    if os.path.isdir(path):
        os.rename(path, target)  # never over a directory with anything in it
    else:
        give_name(path, target)
    sync(os.path.dirname(target))
