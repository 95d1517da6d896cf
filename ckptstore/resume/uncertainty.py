"""What is not known of a file that the catalog knows: then its state stays, since it may be more than it seems."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.core.model import FileState
from ckptstore.core.naming import above_ttp
from ckptstore.errors import UnreadableError
from ckptstore.formats.ckpt import is_encrypted
from ckptstore.formats.inspect import read_checkpoint
from ckptstore.ops.beside_journals import has_lost_its_journal
from ckptstore.storage.claims import FOLDER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from ckptstore.core.model import Checkpoint, Observed
    from ckptstore.ops.debris import Target
    from ckptstore.ops.retention import Key

_NOT_THERE = "is not there: it may not be mounted"
_LACKS_JOURNAL = f"has no {FOLDER} any more, where its journal was: it may not be mounted"

QUIET = timedelta(hours=1)
"""What was written since may be being written still."""


class Doubts:
    """The doubts about the states of a run at a moment; each directory is looked at once.

    `journalled` are the directories that have a journal, as the catalog knows: one where none is may be an empty mount
    point. `unseen` are the directories in which something could not be looked at, with the reason: it may be whole.
    """

    def __init__(self, now: datetime, journalled: Collection[str] = ()) -> None:
        self._journalled = journalled
        self._quiet_since_ns = int((now - QUIET).timestamp() * 1e9)
        self._directories: dict[str, str] = {}
        self.unseen: dict[str, str] = {}

    def of(self, files: Sequence[Checkpoint], seen: Mapping[str, Observed], there: Sequence[Target]) -> str:
        """Why nobody knows whether the state of these files is what it seems; empty if it is."""
        for file in files:
            here = seen[file.path]
            if here.unreadable:
                directory, _, name = file.path.rpartition("/")
                self.unseen.setdefault(directory, f"{name} cannot be looked at: {here.unreadable}")
                return f"{file.path} cannot be looked at: {here.unreadable}"
            if here.size is None:
                doubt = self._of_directory(above_ttp(file.path) or file.path.rpartition("/")[0])
            else:
                doubt = self._of_bytes(file, here)
            if doubt:
                return doubt
        return next((doubt for root in {each.root for each in there} if (doubt := self._of_directory(root))), "")

    def of_homes(self, directories: Collection[str]) -> None:
        """Take note of the directories of a run of which nothing is left: none of them may be there."""
        if not any(map(os.path.isdir, directories)):
            for directory in directories:
                self._of_directory(directory)

    def _of_directory(self, directory: str) -> str:
        if directory not in self._directories:
            doubt = ""
            if os.path.islink(directory):  # noqa: PTH114 — a closed directory above is no error to this one
                doubt = _is_a_link(directory)
            else:
                reason = self._absence(directory)
                if reason:
                    self.unseen[directory] = reason
                    doubt = f"{directory} {reason}"
            self._directories[directory] = doubt
        return self._directories[directory]

    def _absence(self, directory: str) -> str:
        if not os.path.isdir(directory):  # noqa: PTH112
            return _NOT_THERE
        return _LACKS_JOURNAL if has_lost_its_journal(directory, self._journalled) else ""

    def _of_bytes(self, file: Checkpoint, here: Observed) -> str:
        """A file that is not the recorded one may be a checkpoint that nobody registered, unless it is provably cut."""
        if file.state is FileState.MISSING or not _is_changed(file, here):
            return ""
        if here.mtime_ns is not None and here.mtime_ns > self._quiet_since_ns:
            return f"{file.path} was written a short time ago"
        if not _is_cut(file):
            return f"{file.path} is not the file that was recorded, and may be a whole one"
        return ""


def links_among(going: Mapping[Key, Sequence[Target]]) -> dict[Key, str]:
    """Why some of these states may not go: a file of theirs is a link, or is below one that is below its root.

    It costs a look at each file: so only those that are to go are asked about.
    """
    known: dict[str, bool] = {}

    def link(target: Target) -> str:
        path = target.root.rstrip("/")
        for name in target.place.split("/"):
            path = f"{path}/{name}"
            if path not in known:
                known[path] = os.path.islink(path)  # noqa: PTH114 — once a file: pathlib would double its cost
            if known[path]:
                return path
        return ""

    found = {key: next((path for target in targets if (path := link(target))), "") for key, targets in going.items()}
    return {key: _is_a_link(path) for key, path in found.items() if path}


def _is_a_link(path: str) -> str:
    return f"{path} is a link: no link is followed"


def _is_changed(file: Checkpoint, here: Observed) -> bool:
    if here.size != file.size:
        return True
    return here.rewritten and (file.digest is None or here.digest != file.digest)


def _is_cut(file: Checkpoint) -> bool:
    """Whether a file's bytes end before it does; an encrypted one, or one of another format, does not tell."""
    if file.format not in ("ckpt", "safetensors"):
        return False
    try:
        read_checkpoint(Path(file.path))
    except UnreadableError:
        with Path(file.path).open("rb") as opened:
            return not is_encrypted(opened.read(4))
    except OSError:
        return False
    return False
