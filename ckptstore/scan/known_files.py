"""What the catalog has of the paths that a scan sees: which files are known, and which only have the name of one.

A directory may be emptied and filled again. The record of a file that is gone claims its path only for that file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from shlex import quote
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.core.model import FileState
from ckptstore.ops.adopt import Skipped
from ckptstore.ops.adoption import SCANNED
from ckptstore.ops.tree import has_other_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint
    from ckptstore.ops.tree import Tree
    from ckptstore.storage.walk import Seen

_GONE = (FileState.MISSING, FileState.MOVED)
_IN_TRASH = (
    "another file was here, which gc moved to the trash: move this one to a directory of its own and scan that, or "
    "empty the trash with ckptstore purge {run} and scan again"
)
_MAY_BE_A_COPY = (
    "it may be the file that was recorded here and is gone: it has its size, but not its time, and nothing proves "
    "other bytes. Copy it again with its time (cp -p), or move it to a directory of its own and scan that"
)


@dataclass
class OnRecord:
    """The records of a tree. `known`: this run's, by path; `others`: the runs whose the files at other paths are.

    `owners`: the run of every path that was ever recorded; `ids`: those of all of this run's records. `replaced` are
    paths of `known` at which another file is now, to be looked at as if it were new; `doubtful` those at which it may
    be another one. Of these and of `others`, `skipped` says why they are not taken in.
    """

    known: dict[str, Checkpoint] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    skipped: list[Skipped] = field(default_factory=list)


def on_record(database: Database, run: str, root: Path, tree: Tree) -> OnRecord:
    """What the catalog has below the root, held against the files that are there."""
    with database.read() as connection:
        recorded = reads.files_below(connection, str(root))
    found = OnRecord()
    others: dict[str, Checkpoint] = {}
    for file in recorded:
        here = _here(file, tree)
        chosen = found.known if file.run == run else others
        before = chosen.get(file.path)
        if before is None or _weight(before, here) <= min(_weight(file, here), 2):
            chosen[file.path] = file
        if file.run == run:
            found.ids.add(file.id)
    found.owners = {path: file.run for path, file in others.items()} | dict.fromkeys(found.known, run)
    for path, file in others.items():
        here = _here(file, tree)
        own = found.known.get(path)
        if _claims(file, here) and (own is None or not _claims(own, here)):
            found.known.pop(path, None)
            found.others[path] = file.run
            if here is not None:
                found.skipped.append(Skipped(path, _not_taken(file, here) or f"it is of run {file.run!r}"))
    for path, file in found.known.items():
        here = _here(file, tree)
        if here is not None and not _claims(file, here) and _is_another(file, here):
            found.replaced.add(path)
        elif here is not None and (reason := _not_taken(file, here)):
            found.doubtful.add(path)
            found.skipped.append(Skipped(path, reason))
    return found


def _here(file: Checkpoint, tree: Tree) -> Seen | None:
    named = tree.checkpoints.get(file.path)
    return named[1] if named else None


def _is_as_recorded(file: Checkpoint, here: Seen) -> bool:
    return (file.size, file.mtime_ns) == (here.size, here.mtime_ns)


def _claims(file: Checkpoint, here: Seen | None) -> bool:
    """Whether the path is the record's: not where its file is gone, and another one is there."""
    return here is None or file.state not in _GONE or file.size is None or _is_as_recorded(file, here)


def _weight(file: Checkpoint, here: Seen | None) -> int:
    """Which of several records of a path counts: a live one, one in the trash, one of the file there, the last."""
    if file.state in _GONE:
        return int(here is not None and _is_as_recorded(file, here))
    return 2 if file.state is FileState.TRASHED else 3


def _is_another(file: Checkpoint, here: Seen) -> bool:
    """Whether a file that is not as recorded is proven to be no copy of the recorded one that has lost its time.

    To take in such a copy would be a launch that went back. What nobody registered is judged by its header alone.
    """
    if here.size != file.size:
        return True
    return file.launch.startswith(SCANNED) if file.digest is None else has_other_bytes(file)


def _not_taken(file: Checkpoint, here: Seen) -> str:
    """Why the file at the path of a record is not taken in; empty where it is what was recorded."""
    if file.state is FileState.TRASHED and not _is_as_recorded(file, here):
        return _IN_TRASH.format(run=quote(file.run))
    return "" if _claims(file, here) else _MAY_BE_A_COPY
