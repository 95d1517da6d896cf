"""Tells by device and inode whether two paths are the same file, as where a file system is mounted in two places.

Two network mounts of one file system have two devices: those are not seen through.
"""

from __future__ import annotations

import os
from stat import S_ISREG

Identity = tuple[int, int, str]


def of_file(path: str) -> Identity | None:
    """What tells a file from every other one; None where there is none, or none that can be looked at.

    The names of a file with several hard links are told apart: one can be removed, and the others still have it.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 — called once a rank: pathlib would double its cost
        if not S_ISREG(status.st_mode) or not status.st_ino:
            return None
        if status.st_nlink == 1:
            return status.st_dev, status.st_ino, ""
        directory, name = os.path.split(os.path.realpath(path))
        above = os.stat(directory)  # noqa: PTH116
    except OSError:
        return None
    return above.st_dev, above.st_ino, name
