"""Walks a directory tree in parallel: every regular file with its size and time. Follows no link, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from ckptstore.core.limits import HIGHEST, LONGEST_PATH, TOO_LATE
from ckptstore.core.model import Skipped
from ckptstore.errors import reason_of
from ckptstore.outside import Future, ThreadPoolExecutor, os, queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_THREADS = 16

LOST_AND_FOUND = "lost+found"
"""The directory at the top of each ext4 file system, for e2fsck alone: no user can read it, and no job saves there."""


@dataclass(frozen=True)
class Seen:
    """A regular file: its name, size in bytes and modification time in nanoseconds since 1970."""

    name: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Directory:
    """A directory below the root: `parts` are its components from there, () for the root itself.

    `passed` are entries that were not looked at, or into. `unread` are those of them that the file system refused.
    """

    path: str
    parts: tuple[str, ...]
    files: tuple[Seen, ...]
    passed: tuple[Skipped, ...]
    unread: tuple[Skipped, ...]


def walk(root: str, *, skip: Callable[[str], bool]) -> Iterator[Directory]:
    """Every directory of the tree at `root`, in no order; without lost+found and the names for which `skip` holds.

    Unreadable directories, links, names that are not UTF-8, times that no catalog holds and irregular files are listed
    as passed. A file that vanishes during the walk is ignored.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        done: queue.SimpleQueue[Future[tuple[Directory, list[str]]]] = queue.SimpleQueue()
        pool.submit(look, root, (), skip).add_done_callback(done.put)
        pending = 1
        while pending:
            directory, below = done.get().result()
            pending += len(below) - 1
            for name in below:
                child = f"{directory.path.rstrip('/')}/{name}"
                pool.submit(look, child, (*directory.parts, name), skip).add_done_callback(done.put)
            yield directory


def look(
    path: str, parts: tuple[str, ...] = (), skip: Callable[[str], bool] = lambda _: False
) -> tuple[Directory, list[str]]:
    """One directory alone, and the names of the directories in it."""
    files: list[Seen] = []
    passed: list[Skipped] = []
    unread: list[Skipped] = []
    below: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                reason, is_unread = _look_at(entry, files, below, skip)
                if reason:
                    passed.append(Skipped(shown(entry.path), reason))
                    unread += passed[-1:] if is_unread else []
    except OSError as error:
        passed.append(Skipped(shown(path), reason_of(error)))
        unread += [] if isinstance(error, FileNotFoundError) else passed[-1:]
    return Directory(path, parts, tuple(files), tuple(passed), tuple(unread)), below


def regular_file(directory: str, name: str) -> Seen | None:
    """One of the names in a directory, as `look` sees it; None if it would be passed, or is a directory."""
    path = f"{directory}/{name}"
    try:
        status = os.lstat(path)
    except OSError:
        return None
    is_file = S_ISREG(status.st_mode) and not _unstorable(name, path) and abs(status.st_mtime_ns) <= HIGHEST
    return Seen(name, status.st_size, status.st_mtime_ns) if is_file else None


def is_directory(path: str) -> bool:
    """Whether a directory is there, and no link to one."""
    try:
        return S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _look_at(
    entry: os.DirEntry[str], files: list[Seen], below: list[str], skip: Callable[[str], bool]
) -> tuple[str, bool]:
    """Add an entry to `files` or `below`; return why it is passed, if it is, and whether it could not be looked at."""
    reason = _unstorable(entry.name, entry.path)
    try:
        if reason:
            return reason, False
        if entry.is_symlink():
            reason = "a link"
        elif entry.is_dir(follow_symlinks=False):
            below += [] if skip(entry.name) or entry.name == LOST_AND_FOUND else [entry.name]
        elif entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            if abs(status.st_mtime_ns) > HIGHEST:
                reason = TOO_LATE
            else:
                files.append(Seen(entry.name, status.st_size, status.st_mtime_ns))
        else:
            reason = "not a regular file"
    except FileNotFoundError:
        pass
    except OSError as error:
        return reason_of(error), True
    return reason, False


def _unstorable(name: str, path: str) -> str:
    """Why no catalog holds the path of a file of this name; empty if it can."""
    if not name.isprintable() and shown(name) != name:
        return "its name is not UTF-8"
    return f"its path is longer than {LONGEST_PATH} bytes" if len(os.fsencode(path)) > LONGEST_PATH else ""


def shown(path: str) -> str:
    """The path as text that can be printed and stored."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")
