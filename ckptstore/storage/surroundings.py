"""What is around checkpoints: whether their directories are there, on which disk, and how much room that has.

Directories are looked at, the files in them are not; and what ckptstore keeps beside them is listed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.storage import exit_flags, journal
from ckptstore.storage.claims import FOLDER
from ckptstore.storage.waiting import for_each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Surroundings:
    """A directory: its disk (`device` None: it cannot be looked at, and `trouble` says why), and what is beside it.

    `journals` are those in it, with how long each is, in bytes; `notes` those of flags for graceful exits. Where their
    folder cannot be read, `hidden` says why.
    """

    directory: str
    device: int | None
    trouble: str = ""
    journals: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    hidden: str = ""


@dataclass(frozen=True)
class Room:
    """What a file system still takes from who is not root: bytes, and files (None: it has no limit of them)."""

    bytes: int
    files: int | None


def look_around(directories: Sequence[str]) -> list[Surroundings]:
    """Look at each of these directories, in their order."""
    return for_each(_look_at, directories)


def room_of(directory: str) -> Room:
    """The room on the disk of a directory. Raises `OSError`."""
    found = os.statvfs(directory)
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


def nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))


def may_write(path: Path) -> bool:
    """Whether this process may write a file, or into a directory: not where its disk is mounted read-only either."""
    return os.access(path, os.W_OK)


def _look_at(directory: str) -> Surroundings:
    here = directory.rstrip("/")
    try:
        device = os.stat(f"{here}/.").st_dev  # noqa: PTH116 — once a rank; the dot: it must be possible to enter it
    except OSError as error:
        return Surroundings(directory, None, error.strerror or str(error))
    folder = f"{here}/{FOLDER}"
    try:
        return Surroundings(directory, device, "", journal.sizes_in(folder), exit_flags.notes_in(folder))
    except OSError as error:
        return Surroundings(directory, device, hidden=error.strerror or str(error))
