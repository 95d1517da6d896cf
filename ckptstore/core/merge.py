"""What is true of files, by records that may come in any order, several times, and from several places."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.core.model import FileState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from ckptstore.core.model import Checkpoint

_LIFE = {
    FileState.IN_PROGRESS: 0,
    FileState.COMPLETE: 1,
    FileState.MISSING: 2,
    FileState.MOVED: 3,
    FileState.DAMAGED: 4,
    FileState.TRASHED: 5,
}
_LIVE = (FileState.IN_PROGRESS, FileState.COMPLETE)


def merged(known: Iterable[Checkpoint], records: Iterable[Checkpoint]) -> list[Checkpoint]:
    """The records to write, so that what is known becomes what `known` and `records` say together, in whatever order.

    Of the versions of one record the one whose file was written last counts, of those the one that a look at the disk
    amended last, else the one that is furthest in the life of a file: what is gone comes back by a look at the disk
    only, what retention gave up when it says so. It keeps the moment of the first, and what was ever found to be wrong
    with the state in that very file.
    A path holds one file: of several of a run the one recorded last is there, the others are missing. What another run
    has of it may be this very file, and is left as it is. Every record has its moment (`created_at`), and `known` those
    of the same ids and paths.
    """
    before = {file.id: file for file in known}
    after = dict(before)
    for record in records:
        there = after.get(record.id)
        after[record.id] = record if there is None else _joined(there, record)
    newest: dict[tuple[str, str], Checkpoint] = {}
    for file in after.values():
        place = file.run, file.path
        if place not in newest or _moment(file) > _moment(newest[place]):
            newest[place] = file
    for file in list(after.values()):
        if file.state in _LIVE and newest[file.run, file.path].id != file.id:
            after[file.id] = replace(file, state=FileState.MISSING)
    return [file for file in after.values() if before.get(file.id) != file]


def _joined(one: Checkpoint, other: Checkpoint) -> Checkpoint:
    last = max(one, other, key=_version)
    is_same_file = _version(one)[:2] == _version(other)[:2]
    wrong = max(one.quarantine, other.quarantine) if is_same_file else last.quarantine
    return replace(last, created_at=min(_began(one), _began(other)), quarantine=wrong)


def _version(file: Checkpoint) -> tuple[bool, int, int, float, int, int, str]:
    """Greater for what is to be believed; of records that differ in nothing else, for the one that says more."""
    facts = (file.size, file.digest, file.optimizer_step, file.epoch, file.step_in_epoch, file.strategy_file)
    told = (*facts, file.content.value, *sorted(file.metrics.items()))
    written = -1 if file.mtime_ns is None else file.mtime_ns
    known = sum(fact is not None for fact in told)
    life = _LIFE[file.state]
    amended = -1.0 if file.amended_at is None else file.amended_at.timestamp()
    place = life if file.amended_at is None else max(life, _LIFE[FileState.DAMAGED])
    return file.state is not FileState.IN_PROGRESS, written, place, amended, life, known, repr(told)


def _began(file: Checkpoint) -> datetime:
    if file.created_at is None:
        raise ValueError(f"the record of {file.path} has no moment")
    return file.created_at


def _moment(file: Checkpoint) -> tuple[datetime, int, str]:
    return _began(file), -1 if file.mtime_ns is None else file.mtime_ns, file.id
