"""Checks of a run's storage: its directories, the room for more saves, its journals and its trash."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.catalog import mounts
from ckptstore.catalog.runs import find_called
from ckptstore.core.hints import Command
from ckptstore.core.text import count, size, some, span
from ckptstore.disk import name_claims
from ckptstore.disk.files import facts_if_seen
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.owner import is_dead, shown
from ckptstore.doctor.checkup import Fact, Status
from ckptstore.doctor.run_facts import folder_of, room_of, roots, sizes_of
from ckptstore.errors import reason_of
from ckptstore.journal import jsonl
from ckptstore.journal.accept import MARKS, unconfirmed
from ckptstore.resume.uncertainty import of_absent, of_gone, of_unmoved

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.recent import Lock
    from ckptstore.doctor.checkup import Check
    from ckptstore.doctor.run_facts import Room, RunFacts
    from ckptstore.journal.jsonl import Contents

_FEW_SAVES = 3
_MANY_SAVES = 1000
_FLOOR = 2  # states that no gc removes
_IN_MEMORY = ("tmpfs", "ramfs")
_UNLIMITED = 10**9


def checks(database: Database, facts: RunFacts, *, is_away: bool) -> Iterator[Check]:
    """Check directories, the room on their disks, journals and trash.

    `is_away`: the catalog cannot be used. Then it is unknown which of the journals' records it has.
    """
    yield from disks(facts)
    yield _journals(facts, is_away=is_away)
    yield _trash(facts)
    if facts.lock is not None:
        yield _lock(facts, facts.lock)
    yield from _unconfirmed(database, facts)


def disks(facts: RunFacts) -> Iterator[Check]:
    """Check the directories, and the room on their disks."""
    here: dict[int, list[str]] = {}
    for directory in facts.directories:
        device = facts.around[directory].device
        if device is not None:
            here.setdefault(device, []).append(directory)
    if facts.directories:
        yield _directories(facts)
    yield from _gc_waits(facts)
    for device, directories in here.items():
        yield _disk(facts, device, directories)
    for directories in here.values():
        yield _file_system(facts, directories)


def _directories(facts: RunFacts) -> Check:
    away = [seen for directory in facts.directories if (seen := facts.around[directory]).device is None]
    every = len(facts.directories)
    if away:
        first = "the first is " if len(away) > 1 else ""
        detail = f"{len(away)} of {every} cannot be seen: {first}{away[0].directory} ({away[0].trouble})"
        hint = (
            "mount the disks, or run this on a machine that sees all; for a directory that was moved to NEW: "
            f"{Command('scan', 'NEW', '--run', facts.run)}; {of_gone(facts.run)}"
        )
        return facts.check("directories", Status.WARNING, detail, hint)
    return facts.check("directories", Status.OK, f"{every} at or below {some(roots(facts.directories))}")


def _gc_waits(facts: RunFacts) -> Iterator[Check]:
    """Warn of missing directories because of which gc keeps states, except those that `_directories` reports."""
    told = {each for each in facts.directories if facts.around[each].device is None}
    away = [f"{directory} {why}" for directory, why in facts.absent.items() if directory not in told]
    if away:
        first = "the first is " if len(away) > 1 else ""
        detail = f"for {count(len(away), 'directory', 'directories')} with states of the run: {first}{away[0]}"
        yield facts.check("gc_waits", Status.WARNING, detail, of_absent(facts.run))


def _disk(facts: RunFacts, device: int, directories: list[str]) -> Check:
    where = some(roots(directories))
    try:
        room = room_of(directories[0])
    except OSError as error:
        return facts.check("disk", Status.WARNING, f"{where}: its room is not known ({reason_of(error)})")
    if room.is_read_only:
        hint = "if it was mounted to be written to: see the kernel's log for errors of the disk, then mount it again"
        detail = f"{where}: mounted read-only here: nothing can be saved to it, or removed from it"
        saves_elsewhere = facts.hosts and name_claims.host_name() not in facts.hosts.values()
        return facts.check("disk", Status.NOTE if saves_elsewhere else Status.WARNING, detail, hint)
    files, taken = _next_save(facts, device)
    free = f"{where}: {size(room.bytes)} free"
    if not files:
        return facts.check("disk", Status.OK, f"{free}; no periodic save yet to tell how much one takes")
    more, short = _fits(room, files, taken)
    fits = f"more than {_MANY_SAVES} saves" if more > _MANY_SAVES else count(more, "more save", "more saves")
    detail = f"{free}, room for {fits} of {size(taken)}"
    if more >= _FEW_SAVES:
        return facts.check("disk", Status.OK, detail)
    status = Status.WARNING if more else Status.PROBLEM
    return facts.check("disk", status, f"{detail}{short}", _what_frees(facts), Fact("disk", status.value))


def _what_frees(facts: RunFacts) -> str:
    """The commands that free space now. A gc without --now does not: its files take as much space in the trash."""
    in_trash = sum(each.bytes for each in facts.trash)
    ways = [f"{Command('purge', facts.run, '--now')} frees up to {size(in_trash)}"] if in_trash else []
    there = [saved for saved in facts.saves if facts.around[folder_of(saved.path)].device is not None]
    if len({saved.step for saved in there if facts_if_seen(saved.path) is not None}) > _FLOOR:
        gc = ("gc", facts.run, "--keep-last", _FLOOR)
        ways.append(f"{Command(*gc)} shows what may go, and {Command(*gc, '--apply', '--now')} deletes it")
    return "; ".join(ways) or "no state of this run can be removed: free other space on this disk, or save to another"


def _next_save(facts: RunFacts, device: int) -> tuple[int, int]:
    """The files and bytes that the next save is expected to need on a disk: as many as the largest of the last saves.

    MindSpore deletes its oldest file before it writes a new one (mindspore.md §9). This space is not subtracted, since
    another callback may delete nothing.
    """
    sums: dict[int, list[int]] = {}
    for saved in facts.saves:
        if saved.size is not None and facts.around[folder_of(saved.path)].device == device:
            sums.setdefault(saved.step, []).append(saved.size)
    return max(map(len, sums.values()), default=0), max(map(sum, sums.values()), default=0)


def _fits(room: Room, files: int, taken: int) -> tuple[int, str]:
    """The number of saves that fit, and the scarce resource if it is not bytes."""
    by_bytes = room.bytes // taken if taken else _UNLIMITED
    by_files = _UNLIMITED if room.files is None else room.files // files
    if by_files < by_bytes:
        return by_files, f": there is room for {room.files} more files, and a save needs {files}"
    return by_bytes, ""


def _file_system(facts: RunFacts, directories: list[str]) -> Check:
    where = some(roots(directories))
    kind = mounts.kind_of(directories[0])
    hosts = set(facts.hosts.values())
    if kind is None:
        return facts.check("file_system", Status.NOTE, f"{where}: of unknown kind")
    if kind in _IN_MEMORY:
        hint = "checkpoints there are lost when the machine restarts: save to a disk"
        return facts.check("file_system", Status.WARNING, f"{where}: {kind}, in memory", hint)
    if mounts.is_network(kind):
        detail = f"{where}: {kind}, a network file system; another node may see a new file some seconds late"
        hint = "if resolve misses a save of this minute, ask again"
        return facts.check("file_system", Status.NOTE, detail, hint)
    if len(hosts) > 1:
        detail = f"{where}: {kind}, a disk of one machine, and the ranks run on {len(hosts)}"
        hint = "a rank can restore only what its own node has: save to a shared file system"
        return facts.check("file_system", Status.WARNING, detail, hint)
    return facts.check("file_system", Status.OK, f"{where}: {kind}")


def _journals(facts: RunFacts, *, is_away: bool) -> Check:
    """Check for records in journals that the catalog lacks. `is_away`: the catalog cannot be used."""
    sizes = sizes_of(facts.around.values())
    hidden = {f"{directory}/{FOLDER}": seen.hidden for directory, seen in facts.around.items() if seen.hidden}
    what = count(len({jsonl.directory_of(path) for path in sizes}), "journal", "journals")
    if is_away:
        hint = f"once the catalog can be used it takes up what it lacks by itself; or: {Command('sync')}"
        return _but(hidden, facts.check("journals", Status.NOTE, f"{what}, from which this report was made", hint))
    read, is_all = facts.lacking
    if is_all:
        lacked = {path for path, length in sizes.items() if facts.journals.get(path, 0) < length}
        hidden |= dict.fromkeys(sorted(lacked - read.keys()), "no permission, or the disk fails")
    return _but(hidden, _judged(facts, what, sizes, read, is_all=is_all))


def _but(hidden: Mapping[str, str], check: Check) -> Check:
    """The check, as a warning if journals cannot be read: it is unknown whether the catalog has their records."""
    if not hidden:
        return check
    reason = next(iter(hidden.values()))
    detail = f"files in {some(list(hidden))} cannot be read ({reason}); apart from that: {check.detail}"
    hint = "let this user read them; if the folder is a link, put the folder itself in its place" + (
        f"; {check.hint}" if check.hint else ""
    )
    return replace(check, status=Status.WARNING, detail=detail, hint=hint)


def _judged(
    facts: RunFacts, what: str, sizes: Mapping[str, int], read: Mapping[str, Contents], *, is_all: bool
) -> Check:
    new = {path: contents for path, contents in read.items() if contents.entries}
    records = sum(len(contents.entries) for contents in new.values())
    cut = sum(contents.spoiled for contents in read.values())
    cut += sum(contents.end < sizes[path] for path, contents in read.items())
    spoiled = f"{count(cut, 'line is', 'lines are')} torn, or of another program" if cut else ""
    newer = sum(contents.newer for contents in read.values())
    if newer:
        detail = f"{what}; {count(newer, 'record', 'records')} of a newer ckptstore"
        return facts.check("journals", Status.WARNING, detail, f"update ckptstore here, then: {Command('sync')}")
    if records or not is_all:
        where = some(sorted({jsonl.directory_of(path) for path in new}))
        detail = f"{'' if is_all else 'at least '}{count(records, 'record', 'records')} not in the catalog, in {where}"
        detail += f"; {spoiled}" if spoiled else ""
        return facts.check("journals", Status.WARNING, detail, str(Command("sync", facts.run)))
    if spoiled:
        hint = "nothing to do: only records that were never completed are lost"
        return facts.check("journals", Status.NOTE, f"{what}, all in the catalog; {spoiled}", hint)
    return facts.check("journals", Status.OK, f"{what}, all in the catalog")


def _trash(facts: RunFacts) -> Check:
    files, taken = sum(each.files for each in facts.trash), sum(each.bytes for each in facts.trash)
    detail = f"{count(files, 'file', 'files')}, {size(taken)}" if files else "empty"
    if unmoved := of_unmoved(facts.run, facts.trash):
        what, hint = unmoved
        return facts.check("trash", Status.WARNING, f"{detail}; {what}", hint)
    if not files:
        return facts.check("trash", Status.OK, detail)
    if facts.lock is None and not all(each.ended for each in facts.trash):
        detail += "; a gc was interrupted"
        return facts.check("trash", Status.NOTE, detail, "the next gc, undo or purge goes on with it")
    due = [each for each in facts.trash if each.purged_from <= facts.now]
    if due:
        detail += f"; {size(sum(each.bytes for each in due))} of it for longer than the grace"
        hint = f"{Command('purge', facts.run)}; the next gc does it too"
        return facts.check("trash", Status.NOTE, detail, hint)
    left = span(min(each.purge_after for each in facts.trash) - facts.now)
    return facts.check("trash", Status.OK, f"{detail}; it can be brought back for {left} more")


def _lock(facts: RunFacts, lock: Lock) -> Check:
    if is_dead(lock.owner) or lock.expires_at < facts.now:
        detail = f"{shown(lock.owner)} died, or lost touch, at work on the run's files"
        return facts.check("gc_lock", Status.NOTE, detail, "the next gc, undo or purge takes over")
    detail = f"{shown(lock.owner)} is at work on the run's files"
    return facts.check("gc_lock", Status.NOTE, detail, "gc, undo and purge are refused until it is done")


def _unconfirmed(database: Database, facts: RunFacts) -> Iterator[Check]:
    """A note about what users' commands journalled, if it takes protection away and no person has confirmed it."""
    there = [path for path in facts.journals if facts.around[jsonl.directory_of(path)].device is not None]
    shared = [path for path in there if path.rpartition("/")[2].startswith(jsonl.SHARED)]
    found = jsonl.read_types(sorted(shared), MARKS)
    every = [line for contents in found.values() for line in contents.entries]
    run = find_called(database, facts.run).first
    with database.read() as connection:
        told = unconfirmed(connection, run, every)
        if not told:
            return
        first = next(path for path, each in found.items() if told[0] in unconfirmed(connection, run, each.entries))
    more = f", and {len(told) - 1} more" if len(told) > 1 else ""
    yield facts.check("marks", Status.NOTE, f"{first}: {told[0]}{more}")
