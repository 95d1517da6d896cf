"""A checkpoint of several files has one path: the prefix of TensorFlow's files, or a directory with all that is in it.

A directory with the name of a checkpoint of MindSpore is no checkpoint.
"""

from __future__ import annotations

import errno
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core.naming import DIRECTORY, INDEX, ONE_FILE, TENSORFLOW, format_of, lacking_seal, parse_tensorflow
from ckptstore.disk.name_claims import FOLDER
from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Iterator


NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""The errors of a path at which nothing is. A companion or an index may have a longer name than any file can have."""

WITHOUT_FILES = "it is a directory without files"


class Member(NamedTuple):
    """A file of a checkpoint: its name, below the directory that it is in; size in bytes, time in ns since 1970."""

    name: str
    path: str
    size: int
    mtime_ns: int


def status_of(path: str) -> os.stat_result | None:
    """The status of a path itself; None if nothing is there. Raises `OSError`."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return None
        raise


def status_in(folder: int, name: str) -> os.stat_result | None:
    """The status of a path below an opened directory, of a link itself; None if nothing is there. Raises `OSError`."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return None
        raise


def members_at(path: str, status: os.stat_result | None) -> list[Member]:
    """The files of a checkpoint of several files, by name; empty if nothing is there. `status` is that of its path.

    Raises `OSError` if it cannot be looked at, and for a directory that is no checkpoint: it has no files, or it
    contains a link, a checkpoint of MindSpore, or a `.ckptstore`.
    """
    if status is None:
        return _of_prefix(path)
    if not S_ISDIR(status.st_mode) or format_of(path) in ONE_FILE:
        raise OSError(errno.EINVAL, f"{path} is not a regular file")
    members = [
        Member(name, f"{path}/{name}", each.st_size, each.st_mtime_ns)
        for name, each in below(f"{path}/")
        if S_ISREG(each.st_mode)
    ]
    if not members:
        raise OSError(errno.EINVAL, WITHOUT_FILES)
    return sorted(members)


def format_at(path: str) -> str:
    """The format of the checkpoint at a path, by its files. Raises `OSError`."""
    status = status_of(path)
    if status is not None:
        return DIRECTORY if S_ISDIR(status.st_mode) else format_of(path)
    return TENSORFLOW if _of_prefix(path) else format_of(path)


def lacking(path: str) -> str:
    """A missing file of a checkpoint, by the names of the other files; empty if none is known to be missing.

    Raises `OSError`.
    """
    if (status := status_of(path)) is not None:
        return lacking_seal(os.listdir(path)) if S_ISDIR(status.st_mode) else ""
    there = {each.name for each in _of_prefix(path)}
    count = max((parsed.count for name in there if (parsed := parse_tensorflow(name))), default=0)
    name = path.rpartition("/")[2]
    every = (f"{name}.data-{place:05d}-of-{count:05d}" for place in range(max(count, 1)))
    return next((each for each in every if each not in there), "") if there else ""


def is_worked_in(path: str) -> bool:
    """Whether a path is the working directory, or one above it. No checkpoint is there: the path is a mistake."""
    try:
        here = os.getcwd()
    except OSError:  # it is gone
        return False
    return f"{here}/".startswith(f"{path.rstrip('/')}/")


def prefixed(prefix: str, directory: str | int) -> Iterator[tuple[str, os.stat_result]]:
    """The files of a prefix in a directory, with or without an index. Raises `OSError`, also for a link among them."""
    with os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_tensorflow(entry.name)
            if parsed is not None and parsed.prefix == prefix:
                status = entry.stat(follow_symlinks=False)
                if not S_ISREG(status.st_mode):
                    raise _of_no_file(entry.name)
                yield entry.name, status


def below(directory: str, above: int | None = None) -> Iterator[tuple[str, os.stat_result]]:
    """The files and directories below a directory, by their paths from there; the directory itself is "".

    `above` is the descriptor of its parent. Each directory is opened in the one above, through no link. Raises
    `OSError` if it is no checkpoint.
    """
    for path, folders, names, opened in os.fwalk(directory, onerror=refuse, dir_fd=above):
        inside = path[len(directory) :].lstrip("/")
        yield inside, os.fstat(opened)
        for each in (*folders, *names):
            name = f"{inside}/{each}" if inside else each
            if each == FOLDER or format_of(each) == "ckpt":
                raise OSError(errno.EINVAL, f"it has other checkpoints in it, or their records ({name})")
            status = os.stat(each, dir_fd=opened, follow_symlinks=False)
            if S_ISREG(status.st_mode):
                yield name, status
            elif not S_ISDIR(status.st_mode):
                raise _of_no_file(name)


def refuse(error: OSError) -> None:
    """Have `os.fwalk` stop where a directory cannot be opened."""
    raise error


def _of_prefix(path: str) -> list[Member]:
    directory, _, name = path.rpartition("/")
    if not name or not os.path.isfile(f"{path}{INDEX}"):
        return []
    found = prefixed(name, directory or "/")
    return sorted(Member(each, f"{directory}/{each}", status.st_size, status.st_mtime_ns) for each, status in found)


def _of_no_file(name: str) -> OSError:
    return OSError(errno.EINVAL, f"{name} of it is a link, or no file")
