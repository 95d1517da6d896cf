"""Files that lie beside a journal which was not read: it may tell of them, so nothing else is taken for the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.model import FileState, Skipped
from ckptstore.core.naming import above_save
from ckptstore.disk.name_claims import FOLDER
from ckptstore.journal.jsonl import directory_of
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ckptstore.core.model import Checkpoint

_AWAY = "was not there (or its .ckptstore) when the journals were read; a journal may have a pin or tag of this state"


def unread(skipped: Iterable[Skipped]) -> tuple[Skipped, ...]:
    """The skipped journals, or folders of them: some or all of their events are unknown."""
    return tuple(each for each in skipped if _home(each.path))


def unheard(skipped: Iterable[Skipped]) -> str:
    """Why events of a run may be unknown, such as a pin; empty if every journal was read."""
    first = next(iter(unread(skipped)), None)
    return "" if first is None else f"{first.path}, which may have pins or tags, was not read in full: {first.reason}"


def unheard_states(files: Iterable[Checkpoint], away: Collection[str]) -> dict[tuple[str, int], Skipped]:
    """The states, by launch and step, with a file below a directory that was unmounted when its journals were read.

    With that directory: what protects a state is said beside one of its files.
    """
    found: dict[tuple[str, int], Skipped] = {}
    for file in files if away else ():
        directory = nearest(file.path, away)
        if directory and file.state not in (FileState.MISSING, FileState.MOVED):
            found[file.launch, file.global_step] = Skipped(directory, _AWAY)
    return found


def nearest(path: str, directories: Collection[str]) -> str:
    """Which of these directories is the nearest above a path; empty if none is."""
    while path:
        path = path.rpartition("/")[0]
        if (path or "/") in directories:
            return path or "/"
    return ""


def beside(skipped: Iterable[Skipped], paths: Iterable[str]) -> dict[str, str]:
    """Which of these paths an unread journal may tell of, as the one of their directory; and why they are not taken."""
    homes = {_home(each.path): each for each in unread(skipped)}
    if not homes:
        return {}
    reasons = {}
    for path in paths:
        journal = homes.get(path.rpartition("/")[0] or "/") or homes.get(above_save(path))
        if journal is not None:
            reasons[path] = f"{journal.path}, which may tell of it, was not read in full: {journal.reason}"
    return reasons


def _home(path: str) -> str:
    """The directory that a journal, or a folder of them, tells of; empty for another path."""
    if Path(path).name == FOLDER:
        return str(Path(path).parent)
    return directory_of(path) if Path(path).parent.name == FOLDER else ""
