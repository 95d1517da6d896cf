"""What is at a path, whatever the path: two that are the same directory, or the same file, have the same identity.

Device and inode tell, so links and file systems that are mounted in two places are seen through alike; a file system
that two network mounts serve under two devices is not.
"""

from __future__ import annotations

import os
from collections import defaultdict
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

Identity = tuple[int, int, str]


def of_directory(path: str) -> Identity | None:
    """What tells a directory from every other one; None where there is none, or none that can be looked at."""
    try:
        status = os.stat(path)  # noqa: PTH116 — called once a rank: pathlib would double its cost
    except OSError:
        return None
    return (status.st_dev, status.st_ino, "") if S_ISDIR(status.st_mode) and status.st_ino else None


def of_file(path: str) -> Identity | None:
    """What tells a file from every other one; None where there is none, or none that can be looked at.

    The names of a file with several hard links are told apart: one can be removed, and the others still have it.
    """
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    if not S_ISREG(status.st_mode) or not status.st_ino:
        return None
    if status.st_nlink == 1:
        return status.st_dev, status.st_ino, ""
    folder, name = os.path.split(os.path.realpath(path))
    above = of_directory(folder)
    return above and (above[0], above[1], name)


def second_paths(paths: AbstractSet[str], known: Iterable[str]) -> set[str]:
    """Which of these files are a known one of the same name, or an earlier one of them, under another path."""
    named: dict[str, dict[str, None]] = defaultdict(dict)
    for path in (*known, *sorted(paths)):
        named[path.rpartition("/")[2]][path] = None
    found = set()
    for some in named.values():
        first: dict[Identity, str] = {}
        for path in some if len(some) > 1 else ():
            what = of_file(path)
            if what is not None and first.setdefault(what, path) != path:
                found.add(path)
    return found.intersection(paths)
