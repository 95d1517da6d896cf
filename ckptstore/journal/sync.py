"""Take what journals say into the catalog. May be done at any time, by anyone, again and again."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, replay
from ckptstore.catalog.replay import TakenUp
from ckptstore.core import limits
from ckptstore.errors import UnknownRunError, UsageError
from ckptstore.ops.adopt import Skipped
from ckptstore.ops.entries import said
from ckptstore.ops.put_said import named_launches, put_said
from ckptstore.ops.records import Said
from ckptstore.storage import identity, journal
from ckptstore.storage.files import absolute
from ckptstore.storage.waiting import for_each
from ckptstore.storage.walk import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database
    from ckptstore.storage.journal import Contents

log = logging.getLogger("ckptstore")

_BYTES = 16 << 20  # of journals a transaction
_NOTHING = TakenUp(0, None)
_WORDS = ("pinned", "tagged", "ruled")


@dataclass(frozen=True)
class Synced:
    """What was taken up: journals looked at and read, records that were new or changed, and what could not be used.

    `spoiled` counts lines that are torn, or of other programs; `runs` are those that the journals tell of. Of what was
    `skipped`, `unreadable` are the journals, and directories that may have some, that could not be looked into at all.
    """

    journals: int = 0
    read: int = 0
    records: int = 0
    spoiled: int = 0
    runs: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unreadable: tuple[Skipped, ...] = ()


def sync(database: Database, run_or_directory: str | Path | None = None) -> Synced:
    """Take up the journals of a run, of every run (None), or below a directory: a `Path`, or a name with a slash.

    A string that is the name of a run is the run. Raises `UnknownRunError`, and `UsageError` for what is no directory.
    """
    if isinstance(run_or_directory, Path):
        return sync_below(database, run_or_directory)
    if run_or_directory is not None and "/" in run_or_directory and not _is_run(database, run_or_directory):
        return sync_below(database, Path(run_or_directory))
    with database.read() as connection:
        names = reads.run_names(connection) if run_or_directory is None else [run_or_directory]
        ids = [reads.run_id(connection, name) for name in names]
    total = Synced()
    for name, run_id in zip(names, ids, strict=True):
        if run_id is None:
            raise UnknownRunError(f"no run {name!r} in {database.name}", "give the directory that its files are in")
        total = _added(total, sync_run(database, run_id))
    return total


def _is_run(database: Database, name: str) -> bool:
    try:
        limits.text(name)
    except ValueError:  # the name of a directory need not be UTF-8
        return False
    with database.read() as connection:
        return reads.run_id(connection, name) is not None


def sync_run(database: Database, run_id: int) -> Synced:
    """Take up what the journals of a run say and the catalog lacks: those that it knows of, and others beside them."""
    with database.read() as connection:
        known = replay.journals_of(connection, run_id)
    sizes, skipped = _sizes(database, sorted({path.rpartition("/")[0] for path in known}))
    hidden = tuple(skipped)
    seconds = _second_paths(database, sizes.keys() - known.keys())
    sizes = {path: size for path, size in sizes.items() if path not in seconds}
    return _added(Synced(skipped=hidden, unreadable=hidden), _take_up(database, sizes, known, look=True, of_a_run=True))


def sync_below(database: Database, root: Path) -> Synced:
    """Take up what the journals below a directory say. Raises `UsageError` where that is no directory."""
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory", "give a run, or the directory that the checkpoints are in")
    paths, hidden = found_below([absolute(root)], with_directories=True)
    taken_up = _added(Synced(skipped=hidden, unreadable=hidden), take_up_found(database, paths))
    with database.read() as connection:
        return replace(taken_up, runs=tuple(replay.runs_told(connection, paths)))


def found_below(roots: Iterable[str], *, with_directories: bool = False) -> tuple[list[str], tuple[Skipped, ...]]:
    """The journals below some directories, and those, or folders of them, that cannot be read or named.

    `with_directories`: those too that cannot be read, where there may be journals or none.
    """
    hidden: list[Skipped] = []

    def hide(folder: str, error: OSError) -> None:
        hidden.append(Skipped(folder, error.strerror or str(error)))

    def pass_over(error: OSError) -> None:
        if with_directories and not isinstance(error, FileNotFoundError):
            hide(shown(str(error.filename)), error)

    found: list[str] = []
    for path in (path for root in roots for path in journal.journals_below(root, hide, pass_over)):
        try:
            found.append(limits.path(path))
        except ValueError as error:  # noqa: PERF203 — one that cannot be named keeps nobody from the others
            hidden.append(Skipped(ascii(path)[1:-1], f"its path is {error}"))
    return found, tuple(hidden)


def take_up(database: Database, paths: Iterable[str]) -> Synced:
    """Take up these journals, from where each was read to the last time; no file that they tell of is looked at."""
    return _take_up(database, _sizes_of(paths), {}, look=False)


def take_up_found(database: Database, paths: Iterable[str], *, look: bool = True) -> Synced:
    """Take up journals that were found on disk; `look`: whether the files told of are there.

    One that the catalog knows under another path, as through a link, is left to that: its files would count as two.
    """
    found = set(paths)
    return _take_up(database, _sizes_of(sorted(found - _second_paths(database, found))), {}, look=look)


def _second_paths(database: Database, paths: AbstractSet[str]) -> set[str]:
    """Which of these journals have another path too, by which the catalog knows them or is about to."""
    if not paths:
        return set()
    with database.read() as connection:
        new = paths - replay.taken_up(connection, sorted(paths)).keys()
        known = replay.journals_named(connection, {path.rpartition("/")[2] for path in new}) if new else set()
    return identity.second_paths(new, sorted(known))


def _sizes_of(paths: Iterable[str]) -> dict[str, int]:
    return {path: size for path in paths if (size := journal.size(path)) is not None}


def _take_up(
    database: Database, sizes: dict[str, int], known: dict[str, TakenUp], *, look: bool, of_a_run: bool = False
) -> Synced:
    """Take up journals of these sizes, those that have grown since; `look`: whether the files told of are there.

    `of_a_run`: they are those of a run, each looked at in every resolve: one that has not grown is not opened.
    """
    if sizes.keys() - known.keys():
        with database.read() as connection:
            known = replay.taken_up(connection, sorted(sizes))
    total = Synced(journals=len(sizes))
    portion: list[tuple[str, TakenUp]] = []
    weight = 0
    for path, size in sorted(sizes.items()):
        before = known.get(path, _NOTHING)
        if size == before.end and (of_a_run or _has_head(path, before.head)):
            continue
        portion.append((path, before if size >= before.end else _NOTHING))  # one that has shrunk is another one
        weight += size
        if weight > _BYTES:
            total = _added(total, _read(database, portion, look=look))
            portion, weight = [], 0
    return _added(total, _read(database, portion, look=look)) if portion else total


def _has_head(path: str, known: str | None) -> bool:
    """Whether a journal is the one that was taken up; one that cannot be read may be."""
    try:
        return known is None or journal.head(path) == known
    except OSError:
        return True


def _sizes(database: Database, folders: Sequence[str]) -> tuple[dict[str, int], list[Skipped]]:
    sizes: dict[str, int] = {}
    skipped: list[Skipped] = []
    for found in for_each(_sizes_in, folders, between=database.let_go_if_idle):
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            sizes |= found
    return sizes, skipped


def _sizes_in(folder: str) -> dict[str, int] | Skipped:
    try:
        return journal.sizes_in(folder)
    except OSError as error:
        return Skipped(folder, error.strerror or str(error))


def _read(database: Database, journals: Sequence[tuple[str, TakenUp]], *, look: bool) -> Synced:
    read: dict[str, Contents] = {}
    skipped: list[Skipped] = []
    begins: dict[str, int] = {}
    for path, before in journals:
        database.let_go_if_idle()
        try:
            read[path] = journal.read(path, before.end)
            is_other = before.head is not None and read[path].head != before.head
            begins[path] = 0 if is_other else before.end
            if is_other:
                read[path] = journal.read(path)
        except OSError as error:
            skipped.append(Skipped(path, error.strerror or str(error)))

    def work(connection: Connection) -> tuple[Said, set[str], int, list[str]]:
        everything, heard, named = _all_said(connection, read)
        known_launches, count = put_said(connection, everything, look=look)
        names = sorted({run for runs in heard.values() for run in runs})
        ids = {name: run_id for name in names if (run_id := reads.run_id(connection, name)) is not None}
        by_path = {path: [ids[run] for run in runs if run in ids] for path, runs in heard.items()}
        ends = {  # what was left out is read again: another journal may yet tell of its launch
            path: TakenUp(contents.end if named[path] <= known_launches else begins[path], contents.head)
            for path, contents in read.items()
        }
        replay.set_taken_up(connection, ends, by_path)
        return everything, known_launches, count, names

    everything, known_launches, count, names = database.in_write(work)
    unreadable = tuple(skipped)
    newer = [path for path, contents in read.items() if contents.newer]
    skipped += [Skipped(path, "it has entries of a newer ckptstore, which were left out") for path in newer]
    lost = {file.launch for file in everything.files} - known_launches
    one_of_each = {file.launch: file for file in everything.files if file.launch in lost}
    skipped += [
        Skipped(file.path, f"no journal here tells of launch {launch}, whose files are left out until one does")
        for launch, file in one_of_each.items()
    ]
    spoiled = sum(contents.spoiled for contents in read.values()) + everything.unusable
    return Synced(0, len(read), count, spoiled, tuple(names), tuple(skipped), unreadable)


def _all_said(
    connection: Connection, read: dict[str, Contents]
) -> tuple[Said, dict[str, set[str]], dict[str, set[str]]]:
    """What the journals say, of which runs each tells, and which launches it names.

    Where one speaks of a launch that is not known, the catalog was lost since it was read to there: it is read whole.
    """
    everything = Said()
    heard: dict[str, set[str]] = {}
    named: dict[str, set[str]] = {}
    for path, contents in list(read.items()):
        own = _said_by(path, contents)
        begun = {began.launch.id for began in own.began}
        if any(reads.launch(connection, launch) is None for launch in named_launches(own) - begun):
            read[path] = journal.read(path)
            own = _said_by(path, read[path])
        named[path] = named_launches(own)
        heard[path] = {began.launch.run for began in own.began} | {file.run for file in own.files}
        for words in (own.pinned, own.tagged, own.ruled):
            heard[path] |= {word.run for word in words}
        for name in ("began", "sources", "ended", "verdicts", "layout_files", "files", *_WORDS):
            getattr(everything, name).extend(getattr(own, name))
        everything.unusable += own.unusable
    return everything, heard, named


def _said_by(path: str, contents: Contents) -> Said:
    own = Said()
    said(contents.entries, journal.directory_of(path), own)
    return own


def _added(one: Synced, other: Synced) -> Synced:
    return Synced(
        one.journals + other.journals,
        one.read + other.read,
        one.records + other.records,
        one.spoiled + other.spoiled,
        tuple(sorted({*one.runs, *other.runs})),
        (*one.skipped, *other.skipped),
        (*one.unreadable, *other.unreadable),
    )
