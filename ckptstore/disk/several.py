"""A checkpoint of several files has one path: the prefix of TensorFlow's files, or a directory with all that is in it.

A directory with the name of a checkpoint of MindSpore is none.
"""

from __future__ import annotations

import errno
import os
from stat import S_ISDIR
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core.naming import DIRECTORY, INDEX, ONE_FILE, TENSORFLOW, format_of, parse_tensorflow
from ckptstore.disk.claims import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator


class Member(NamedTuple):
    """A file of a checkpoint: its name, below the directory that it is in; size in bytes, time in ns since 1970."""

    name: str
    path: str
    size: int
    mtime_ns: int


def status_of(path: str) -> os.stat_result | None:
    """What is at a path itself; None if nothing is. Raises `OSError`."""
    try:
        return os.stat(path)  # noqa: PTH116 — called once a rank: pathlib would double its cost
    except (FileNotFoundError, NotADirectoryError):
        return None


def members_at(path: str, status: os.stat_result | None) -> list[Member]:
    """The files of a checkpoint that is no single one, by name; none where there is none. `status` is that of its path.

    Raises `OSError` where it cannot be looked at, and for a directory that is no checkpoint: it is empty, or has a link
    in it, a checkpoint of MindSpore, or the records of others.
    """
    if status is None:
        return _of_prefix(path)
    if not S_ISDIR(status.st_mode) or format_of(path) in ONE_FILE:
        raise OSError(errno.EINVAL, f"{path} is not a regular file")
    members = sorted(_below(path))
    if not members:
        raise OSError(errno.EINVAL, "it is a directory without files")
    return members


def format_at(path: str) -> str:
    """The format of what is at a path, by what is there. Raises `OSError`."""
    status = status_of(path)
    if status is not None:
        return DIRECTORY if S_ISDIR(status.st_mode) else format_of(path)
    return TENSORFLOW if _of_prefix(path) else format_of(path)


def lacking(path: str) -> str:
    """A file that the names of the others say there is, and that is not there; empty where none is known to be lacking.

    Raises `OSError`.
    """
    if status_of(path) is not None:
        return ""
    there = {each.name for each in _of_prefix(path)}
    count = max((parsed.count for name in there if (parsed := parse_tensorflow(name))), default=0)
    name = path.rpartition("/")[2]
    every = (f"{name}.data-{place:05d}-of-{count:05d}" for place in range(max(count, 1)))
    return next((each for each in every if each not in there), "") if there else ""


def is_worked_in(path: str) -> bool:
    """Whether a path is the working directory, or one above it: somebody meant another one."""
    try:
        here = os.getcwd()  # noqa: PTH109 — once a record
    except OSError:  # it is gone
        return False
    return f"{here}/".startswith(f"{path.rstrip('/')}/")


def _of_prefix(path: str) -> list[Member]:
    directory, _, name = path.rpartition("/")
    if not name or not os.path.isfile(f"{path}{INDEX}"):  # noqa: PTH113
        return []
    found = []
    with os.scandir(directory or "/") as entries:
        for entry in entries:
            parsed = parse_tensorflow(entry.name)
            if parsed is not None and parsed.prefix == name:
                found.append(_member(entry, entry.name))
    return sorted(found)


def _below(root: str) -> Iterator[Member]:
    inside = [""]
    while inside:
        above = inside.pop()
        with os.scandir(f"{root}/{above}") as entries:
            for entry in entries:
                name = f"{above}{entry.name}"
                if entry.name == FOLDER or format_of(name) == "ckpt":
                    raise OSError(errno.EINVAL, f"it has other checkpoints in it, or their records ({name})")
                if entry.is_dir(follow_symlinks=False):
                    inside.append(f"{name}/")
                else:
                    yield _member(entry, name)


def _member(entry: os.DirEntry[str], name: str) -> Member:
    if not entry.is_file(follow_symlinks=False):
        raise OSError(errno.EINVAL, f"{name} of it is a link, or no file")
    status = entry.stat(follow_symlinks=False)
    return Member(name, entry.path, status.st_size, status.st_mtime_ns)
