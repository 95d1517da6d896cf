"""Reasons to be unsure about a recorded file: its directory is not present, or it was written again.

Retention keeps the state of such a file.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from ckptstore.core.hints import Command
from ckptstore.core.model import FileState, Rule
from ckptstore.core.naming import ONE_FILE
from ckptstore.core.sighting import Sighting, compare
from ckptstore.core.text import count
from ckptstore.disk.files import has_anything
from ckptstore.disk.presence import EMPTY, absence_beside, directory_of
from ckptstore.formats.inspect import is_broken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from ckptstore.catalog.recent import Waiting
    from ckptstore.core.model import Checkpoint, Observed

QUIET = timedelta(hours=1)
"""A file that changed within this time may not be finished."""


class Uncertainties:
    """Judges which states of a run are uncertain at a moment.

    `lost` has the reason why each unseen file may still exist (empty: it is gone). `unseen` are the directories with
    files that could not be looked at and may be whole, with the reason.
    """

    def __init__(self, now: datetime, lost: Mapping[str, str]) -> None:
        self._lost = lost
        self._quiet_since_ns = int((now - QUIET).timestamp() * 1e9)
        self._emptied: dict[str, str] = {}
        self.unseen: dict[str, str] = {}

    def of(self, files: Sequence[Checkpoint], seen: Mapping[str, Observed]) -> str:
        """Why the state of these files is uncertain; empty if it is certain."""
        for file in files:
            here = seen[file.path]
            if here.unreadable:
                directory, _, name = file.path.rpartition("/")
                reason = f"{file.path} cannot be looked at: {here.unreadable}"
                self.unseen.setdefault(directory, f"{name} cannot be looked at: {here.unreadable}")
            elif file.state is FileState.MISSING:
                reason = "" if file.directory_id or here.size is not None else self._of_emptied(file)
            elif here.size is None:
                reason = self._away(file, self._lost[file.path])
            else:
                reason = self._of_bytes(file, here)
            if reason:
                return reason
        return ""

    def _of_emptied(self, file: Checkpoint) -> str:
        """Why a file that a scan found gone may exist: its directory, if empty, may be an unused mount point."""
        directory = directory_of(file.path)
        if directory not in self._emptied:
            self._emptied[directory] = "" if has_anything(directory) else EMPTY
        return self._away(file, self._emptied[directory])

    def _away(self, file: Checkpoint, reason: str) -> str:
        if not reason:
            return ""
        directory = directory_of(file.path)
        self.unseen.setdefault(directory, reason)
        return f"{directory} {reason}"

    def _of_bytes(self, file: Checkpoint, here: Observed) -> str:
        """Why the file makes its state uncertain: it is not the recorded one, but may be an unregistered checkpoint.

        A provably cut file is none. A file that was found damaged, and does not look so now, is uncertain too.
        """
        if file.state is FileState.DAMAGED and _is_repaired(file, here):
            return f"{file.path} was found to be damaged, and does not look so now: verify it again"
        if file.state is FileState.MISSING or (file.size is not None and compare(file, here) is Sighting.SAME):
            return ""
        if away := self._away(file, absence_beside(file)):
            return away
        if here.mtime_ns is not None and here.mtime_ns > self._quiet_since_ns:
            return f"{file.path} differs from its record, and was written a short time ago"
        if not _is_provably_cut(file):
            return f"{file.path} is not the file that was recorded, but may be whole"
        return ""


def of_absent(run: str) -> str:
    """The hint about absent directories because of which gc keeps states of a run."""
    return f"mount the disk, check the permissions, or update ckptstore; {of_gone(run)}"


def of_gone(run: str) -> str:
    """The hint about directories that are gone for good: until a scan records that, they count as unmounted."""
    return (
        "if a directory or its .ckptstore is gone for good, tell the catalog, on a machine that saw it: "
        f"mkdir -p DIRECTORY/.ckptstore, then {Command('scan', 'DIRECTORY', '--run', run)}"
    )


def of_unmoved(run: str, waiting: Iterable[Waiting]) -> tuple[str, str] | None:
    """The message about files that gc could not move, and what to do; None if there are none."""
    files = sum(each.unmoved for each in waiting)
    if not files:
        return None
    are, them = ("is", "it") if files == 1 else ("are", "them")
    what = f"{count(files, 'file', 'files')} that gc could not move {are} in place, but no start takes {them}"
    return what, f"{Command('undo', run)}, or the next gc --apply, brings {them} back"


def _is_repaired(file: Checkpoint, here: Observed) -> bool:
    """Whether the fault of a file has gone: a disk or a network may have failed only for a moment."""
    if file.problem is Rule.SIZE_MISMATCH:
        return here.size == file.size
    if file.problem is Rule.UNREADABLE:
        return not _is_provably_cut(file)
    return here.digest is not None and here.digest == file.digest


def _is_provably_cut(file: Checkpoint) -> bool:
    return file.format in ONE_FILE and is_broken(file.path)
