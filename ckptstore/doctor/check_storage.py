"""Checks of the directories that a run saves to: whether they are here, on what, and how many more saves fit."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from ckptstore.catalog import mounts
from ckptstore.core.words import count, size, some
from ckptstore.ops.checkup import Status
from ckptstore.ops.run_facts import folder_of, roots
from ckptstore.storage.surroundings import room_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptstore.ops.checkup import Check
    from ckptstore.ops.run_facts import RunFacts
    from ckptstore.storage.surroundings import Room

_FEW_SAVES = 3
_MANY_SAVES = 1000
_IN_MEMORY = ("tmpfs", "ramfs")
_UNLIMITED = 10**9


def look(facts: RunFacts) -> Iterator[Check]:
    """Where the directories are, and what is left on their disks."""
    here: dict[int, list[str]] = {}
    for directory in facts.directories:
        device = facts.around[directory].device
        if device is not None:
            here.setdefault(device, []).append(directory)
    if facts.directories:
        yield _directories(facts)
    for device, directories in here.items():
        yield _disk(facts, device, directories)
    for directories in here.values():
        yield _file_system(facts, directories)
    if facts.doubled:
        one, other = facts.doubled
        detail = f"a rank's files of one launch are in {one} and in {other}: one is a copy"
        hint = f"move away the one that nobody trains in, then: ckptstore resolve {quote(facts.run)}"
        yield facts.check("copies", Status.WARNING, detail, hint)


def _directories(facts: RunFacts) -> Check:
    away = [seen for directory in facts.directories if (seen := facts.around[directory]).device is None]
    every = len(facts.directories)
    if away:
        detail = f"{len(away)} of {every} cannot be seen: {away[0].directory} ({away[0].trouble})"
        hint = "mount what is not mounted, or ask on a machine that sees all; rank 0 must see them to start"
        return facts.check("directories", Status.WARNING, detail, hint)
    return facts.check("directories", Status.OK, f"{every} in {some(roots(facts.directories))}")


def _disk(facts: RunFacts, device: int, directories: list[str]) -> Check:
    where = some(roots(directories))
    try:
        room = room_of(directories[0])
    except OSError as error:
        return facts.check("disk", Status.WARNING, f"{where}: its room is not known ({error.strerror})")
    files, taken = _next_save(facts, device)
    free = f"{where}: {size(room.bytes)} free"
    if not files:
        return facts.check("disk", Status.OK, f"{free}; no periodic save yet to tell how much one takes")
    more, short = _fits(room, files, taken)
    fits = f"more than {_MANY_SAVES} saves" if more > _MANY_SAVES else count(more, "more save", "more saves")
    detail = f"{free}, room for {fits} of {size(taken)}"
    if more >= _FEW_SAVES:
        return facts.check("disk", Status.OK, detail)
    in_trash = sum(each.bytes for each in facts.trash)
    purge = f"; ckptstore purge {quote(facts.run)} --now frees up to {size(in_trash)}" if in_trash else ""
    hint = f"ckptstore gc {quote(facts.run)} --keep-last 5 shows what may go{purge}"
    return facts.check("disk", Status.WARNING if more else Status.PROBLEM, f"{detail}{short}", hint)


def _next_save(facts: RunFacts, device: int) -> tuple[int, int]:
    """How many files and bytes the next save is taken to put on a disk: as the largest of the last ones.

    MindSpore deletes the oldest before it writes (domain §9); that is not counted on: another callback may not.
    """
    sums: dict[int, list[int]] = {}
    for saved in facts.saves:
        if saved.size is not None and facts.around[folder_of(saved.path)].device == device:
            sums.setdefault(saved.step, []).append(saved.size)
    return max(map(len, sums.values()), default=0), max(map(sum, sums.values()), default=0)


def _fits(room: Room, files: int, taken: int) -> tuple[int, str]:
    """How many saves fit, and what is short where that is not the bytes."""
    by_bytes = room.bytes // taken if taken else _UNLIMITED
    by_files = _UNLIMITED if room.files is None else room.files // files
    if by_files < by_bytes:
        return by_files, f": it takes {room.files} more files, a save has {files}"
    return by_bytes, ""


def _file_system(facts: RunFacts, directories: list[str]) -> Check:
    where = some(roots(directories))
    kind = mounts.kind_of(directories[0])
    hosts = set(facts.hosts.values())
    if kind is None:
        return facts.check("file_system", Status.NOTE, f"{where}: of unknown kind")
    if kind in _IN_MEMORY:
        hint = "what is saved there is gone when the machine restarts: save to a disk"
        return facts.check("file_system", Status.WARNING, f"{where}: {kind}, in memory", hint)
    if mounts.is_network(kind):
        detail = f"{where}: {kind}, a network file system; another node may see a new file some seconds late"
        hint = "if resolve misses a save of this minute, ask again"
        return facts.check("file_system", Status.NOTE, detail, hint)
    if len(hosts) > 1:
        detail = f"{where}: {kind}, a disk of one machine, and the ranks run on {len(hosts)}"
        hint = "rank 0 must see the files of all ranks: save to a shared file system"
        return facts.check("file_system", Status.WARNING, detail, hint)
    return facts.check("file_system", Status.OK, f"{where}: {kind}")
