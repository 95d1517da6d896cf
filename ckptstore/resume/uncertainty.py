"""Why nobody can tell what became of a recorded file: its directory is missing, it is a link, it was written again.

Retention keeps the state of such a file.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from ckptstore.core.model import FileState, Rule
from ckptstore.core.naming import above_ttp
from ckptstore.disk.claims import FOLDER
from ckptstore.disk.files import is_gone
from ckptstore.formats.inspect import is_broken
from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from ckptstore.core.model import Checkpoint, Observed

_NOT_THERE = "is not there: it may not be mounted"
_EMPTY = f"is empty: it may not be mounted; if its files are gone for good: make {FOLDER} in it"
_LACKS_JOURNAL = f"has no {FOLDER} any more, where its journal was: it may not be mounted"

QUIET = timedelta(hours=1)
"""What was written since may be being written still."""


class Uncertainties:
    """What is uncertain of the states of a run at a moment; each directory is looked at once.

    `journalled` are the directories that have a journal, as the catalog knows: one where none is may be an empty mount
    point. `unseen` are the directories in which something could not be looked at, with the reason: it may be whole.
    """

    def __init__(self, now: datetime, journalled: Collection[str] = ()) -> None:
        self._journalled = journalled
        self._quiet_since_ns = int((now - QUIET).timestamp() * 1e9)
        self._directories: dict[str, str] = {}
        self.unseen: dict[str, str] = {}

    def of(self, files: Sequence[Checkpoint], seen: Mapping[str, Observed], roots: Collection[str]) -> str:
        """Why nobody knows whether the state of these files is what it seems; empty if it is."""
        for file in files:
            here = seen[file.path]
            if here.unreadable:
                directory, _, name = file.path.rpartition("/")
                self.unseen.setdefault(directory, f"{name} cannot be looked at: {here.unreadable}")
                return f"{file.path} cannot be looked at: {here.unreadable}"
            if here.size is None:
                home = above_ttp(file.path) or file.path.rpartition("/")[0]
                reason = self._of_directory(home)
                if not reason and not is_gone(file.path, home, is_journalled=home in self._journalled):
                    reason = f"{file.path} was away while it was looked at, or a link leads there"
            else:
                reason = self._of_bytes(file, here)
            if reason:
                return reason
        return next((reason for root in roots if (reason := self._of_directory(root))), "")

    def of_homes(self, directories: Collection[str]) -> None:
        """Take note of the directories of a run of which nothing is left: none of them may be there."""
        if not any(map(os.path.isdir, directories)):
            for directory in directories:
                self._of_directory(directory)

    def _of_directory(self, directory: str) -> str:
        if directory not in self._directories:
            self._directories[directory] = self._look_at(directory)
        return self._directories[directory]

    def _look_at(self, directory: str) -> str:
        if os.path.islink(directory):
            return is_a_link(directory)
        reason = self._absence(directory)
        if reason:
            self.unseen[directory] = reason
        return f"{directory} {reason}" if reason else ""

    def _absence(self, directory: str) -> str:
        if not os.path.isdir(directory):
            return _NOT_THERE
        if directory in self._journalled:
            return "" if os.path.isdir(f"{directory}/{FOLDER}") else _LACKS_JOURNAL
        with suppress(OSError), os.scandir(directory) as entries:
            return "" if next(entries, None) else _EMPTY
        return ""

    def _of_bytes(self, file: Checkpoint, here: Observed) -> str:
        """A file that is not the recorded one may be a checkpoint that nobody registered, unless it is provably cut.

        So may one that was found to be damaged, and does not look so any more.
        """
        if file.state is FileState.DAMAGED and _is_repaired(file, here):
            return f"{file.path} was found to be damaged, and does not look so now: verify it again"
        if file.state is FileState.MISSING or not _is_changed(file, here):
            return ""
        if here.mtime_ns is not None and here.mtime_ns > self._quiet_since_ns:
            return f"{file.path} was written a short time ago"
        if not _is_provably_cut(file):
            return f"{file.path} is not the file that was recorded, and may be a whole one"
        return ""


def is_a_link(path: str) -> str:
    """Why what is below a link stays."""
    return f"{path} is a link: no link is followed"


def _is_repaired(file: Checkpoint, here: Observed) -> bool:
    """Whether what was wrong with a file is not any more: a disk, or a network, may have failed for a moment only."""
    if file.problem is Rule.SIZE_MISMATCH:
        return here.size == file.size
    if file.problem is Rule.UNREADABLE:
        return not _is_provably_cut(file)
    return here.digest is not None and here.digest == file.digest


def _is_provably_cut(file: Checkpoint) -> bool:
    return file.format in ("ckpt", "safetensors") and is_broken(file.path)


def _is_changed(file: Checkpoint, here: Observed) -> bool:
    if here.size != file.size:
        return True
    return here.rewritten and (file.digest is None or here.digest != file.digest)
