"""Take what journals say into the catalog. May be done at any time, by anyone, again and again."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, replay, writes
from ckptstore.core.merge import merged
from ckptstore.core.model import FileState
from ckptstore.errors import UnknownRunError, UsageError
from ckptstore.ops import lease, strategies
from ckptstore.ops.adopt import Skipped
from ckptstore.ops.entries import said
from ckptstore.ops.records import Said
from ckptstore.storage import journal
from ckptstore.storage.files import names_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, Launch
    from ckptstore.ops.records import Began
    from ckptstore.storage.journal import Contents

log = logging.getLogger("ckptstore")

_THREADS = 16
_PORTION = 16  # folders a task: handing over one alone costs more than to look into it
_BYTES = 16 << 20  # of journals a transaction
_WORDS = ("pinned", "tagged", "ruled")
_SAVED_SEPARATELY = "its launch is in no journal here: its own journal may be lost"


@dataclass(frozen=True)
class Synced:
    """What was taken up: journals looked at and read, records that were new or changed, and what could not be used.

    `spoiled` counts lines that are torn, or of other programs; `runs` are those that the journals tell of. Of what was
    `skipped`, `unreadable` are the journals that could not be looked into at all.
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

    Raises `UnknownRunError`, and `UsageError` for what is no directory.
    """
    if isinstance(run_or_directory, Path):
        return sync_below(database, run_or_directory)
    if run_or_directory is not None and "/" in run_or_directory:
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


def sync_run(database: Database, run_id: int) -> Synced:
    """Take up what the journals of a run say and the catalog lacks: those that it knows of, and others beside them."""
    with database.read() as connection:
        known = replay.journals_of(connection, run_id)
    sizes, skipped = _sizes(sorted({path.rpartition("/")[0] for path in known}))
    hidden = tuple(skipped)
    return _added(Synced(skipped=hidden, unreadable=hidden), _take_up(database, sizes, known, look=True))


def sync_below(database: Database, root: Path) -> Synced:
    """Take up what the journals below a directory say. Raises `UsageError` where that is no directory."""
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory", "give a run, or the directory that the checkpoints are in")
    paths, hidden = found_below([str(root.absolute())])
    taken_up = _added(Synced(skipped=hidden, unreadable=hidden), _take_up(database, _sizes_of(paths), {}, look=True))
    with database.read() as connection:
        return replace(taken_up, runs=tuple(replay.runs_told(connection, paths)))


def found_below(roots: Iterable[str]) -> tuple[list[str], tuple[Skipped, ...]]:
    """The journals below some directories, and the folders of journals there that cannot be read."""
    hidden: list[Skipped] = []

    def hide(folder: str, error: OSError) -> None:
        hidden.append(Skipped(folder, error.strerror or str(error)))

    return [path for root in roots for path in journal.journals_below(root, hide)], tuple(hidden)


def take_up(database: Database, paths: Iterable[str], *, look: bool = False) -> Synced:
    """Take up these journals, from where each was read to the last time; `look`: whether files told of are there."""
    return _take_up(database, _sizes_of(paths), {}, look=look)


def _sizes_of(paths: Iterable[str]) -> dict[str, int]:
    return {path: size for path in paths if (size := journal.size(path)) is not None}


def _take_up(database: Database, sizes: dict[str, int], known: dict[str, int], *, look: bool) -> Synced:
    """Take up journals of these sizes, those that have grown since; `look`: whether the files told of are there."""
    if sizes.keys() - known.keys():
        with database.read() as connection:
            known = replay.taken_up(connection, sorted(sizes))
    total = Synced(journals=len(sizes))
    portion: list[tuple[str, int]] = []
    weight = 0
    for path, size in sorted(sizes.items()):
        begin = known.get(path, 0)
        if size == begin:
            continue
        portion.append((path, begin if size > begin else 0))  # one that has shrunk is another one
        weight += size
        if weight > _BYTES:
            total = _added(total, _read(database, portion, look=look))
            portion, weight = [], 0
    return _added(total, _read(database, portion, look=look)) if portion else total


def _sizes(folders: Sequence[str]) -> tuple[dict[str, int], list[Skipped]]:
    def look(some: Sequence[str]) -> list[dict[str, int] | Skipped]:
        return [_sizes_in(folder) for folder in some]

    portions = [folders[start : start + _PORTION] for start in range(0, len(folders), _PORTION)]
    sizes: dict[str, int] = {}
    skipped: list[Skipped] = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for found in (each for portion in pool.map(look, portions) for each in portion):
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


def _read(database: Database, journals: Sequence[tuple[str, int]], *, look: bool) -> Synced:
    read: dict[str, Contents] = {}
    skipped: list[Skipped] = []
    for path, begin in journals:
        try:
            read[path] = journal.read(path, begin)
        except OSError as error:  # noqa: PERF203 — one that cannot be read keeps nobody from the others
            skipped.append(Skipped(path, error.strerror or str(error)))

    def work(connection: Connection) -> tuple[Said, set[str], int, list[str]]:
        everything, heard = _all_said(connection, read)
        told = put_began(connection, everything.began)
        others = _named(everything) - told
        known_launches = told | {launch for launch in others if reads.launch(connection, launch) is not None}
        count = _put(connection, everything, known_launches, look=look)
        names = sorted({run for runs in heard.values() for run in runs})
        ids = {name: run_id for name in names if (run_id := reads.run_id(connection, name)) is not None}
        by_path = {path: [ids[run] for run in runs if run in ids] for path, runs in heard.items()}
        replay.set_taken_up(connection, {path: contents.end for path, contents in read.items()}, by_path)
        return everything, known_launches, count, names

    everything, known_launches, count, names = database.in_write(work)
    unreadable = tuple(skipped)
    newer = [path for path, contents in read.items() if contents.newer]
    skipped += [Skipped(path, "it has entries of a newer ckptstore, which were left out") for path in newer]
    lost = {file.launch for file in everything.files} - known_launches
    skipped += [Skipped(file.path, _SAVED_SEPARATELY) for file in everything.files if file.launch in lost]
    spoiled = sum(contents.spoiled for contents in read.values()) + everything.unusable
    return Synced(0, len(read), count, spoiled, tuple(names), tuple(skipped), unreadable)


def _all_said(connection: Connection, read: dict[str, Contents]) -> tuple[Said, dict[str, set[str]]]:
    """What the journals say, and of which runs each tells.

    Where one speaks of a launch that is not known, the catalog was lost since it was read to there: it is read whole.
    """
    everything = Said()
    heard: dict[str, set[str]] = {}
    for path, contents in list(read.items()):
        own = _said_by(path, contents)
        begun = {began.launch.id for began in own.began}
        if any(reads.launch(connection, launch) is None for launch in _named(own) - begun):
            read[path] = journal.read(path)
            own = _said_by(path, read[path])
        heard[path] = {began.launch.run for began in own.began} | {file.run for file in own.files}
        for words in (own.pinned, own.tagged, own.ruled):
            heard[path] |= {word.run for word in words}
        for name in ("began", "sources", "ended", "verdicts", "layout_files", "files", *_WORDS):
            getattr(everything, name).extend(getattr(own, name))
        everything.unusable += own.unusable
    return everything, heard


def _said_by(path: str, contents: Contents) -> Said:
    own = Said()
    said(contents.entries, journal.directory_of(path), own)
    return own


def put_began(connection: Connection, every: Sequence[Began]) -> set[str]:
    """Put the launches in, and where they started; their ids, and those of the launches that they started from."""
    told: dict[str, Launch] = {}
    origins = [replace(began.origin, decided=False) for began in every if began.origin]
    for launch in [*origins, *(began.launch for began in every)]:
        before = told.get(launch.id)
        told[launch.id] = launch if before is None else _joined(before, launch)
    replay.put_launches(connection, told.values())
    for began in every:
        if began.at is not None:
            step = began.launch.parent_step
            parent = (began.origin.id, step) if began.origin and step is not None else None
            replay.put_resolution(
                connection,
                began.launch.id,
                parent,
                start_step=began.launch.start_step,
                branched=began.launch.branched,
                files=[(rank, file.id) for rank, file in began.plan],
                at=began.at,
            )
            if began.plan:
                replay.put_lease(connection, began.launch.id, began.at + lease.LEASE)
    return set(told)


def _joined(before: Launch, after: Launch) -> Launch:
    """What two entries say of a launch together: one may be of before its data was known."""
    return replace(
        after,
        steps_per_epoch=after.steps_per_epoch or before.steps_per_epoch,
        batch_size=after.batch_size or before.batch_size,
        shards=after.shards or before.shards,
    )


def _named(told: Said) -> set[str]:
    """The launches that records are of."""
    named = {file.launch for file in told.files} | {source.launch for source in told.sources}
    named |= {kept.launch for kept in told.layout_files} | {verdict.launch for verdict in told.verdicts}
    return named | {ended.launch for ended in told.ended}


def _put(connection: Connection, everything: Said, launches: set[str], *, look: bool) -> int:
    for source in everything.sources:
        if source.launch in launches:
            writes.add_source(
                connection,
                launch_id=source.launch,
                rank=source.rank,
                directory=source.directory,
                kind=source.kind,
                prefix=source.prefix,
                breakpoint_prefix=source.breakpoint_prefix,
                names_before=sorted(source.names_before),
                host=source.host,
            )
    for ended in everything.ended:
        if ended.launch in launches:
            row = {**ended.__dict__, "launch_id": ended.launch, "created_at": ended.at}
            row["quarantine"] = ended.quarantine or None
            del row["launch"], row["at"]
            replay.put_ending(connection, row)
    for verdict in everything.verdicts:
        if verdict.launch in launches:
            named = {"launch_id": verdict.launch, "rank": verdict.rank, "outcome": verdict.outcome.value}
            about = {"checkpoint_id": verdict.file.id if verdict.file else None, "detail": verdict.detail}
            replay.put_outcome(connection, {**named, **about, "created_at": verdict.at})
    for kept in everything.layout_files:
        if kept.launch in launches:
            strategies.put(connection, kept)
    records = [file for file in everything.files if file.launch in launches]
    known = replay.related_files(connection, records)
    changed = merged(known, records)
    if look:
        changed = _as_on_disk(changed, {file.id for file in known})
    replay.put_checkpoints(connection, changed)
    _put_words(connection, everything)
    return len(changed)


def _as_on_disk(files: Sequence[Checkpoint], known: AbstractSet[str]) -> list[Checkpoint]:
    """The records, those new to the catalog as missing where their file is gone: no journal tells what gc removed."""
    names: dict[str, AbstractSet[str] | None] = {}
    seen = []
    for file in files:
        directory, _, name = file.path.rpartition("/")
        if file.id not in known and file.state is FileState.COMPLETE:
            if directory not in names:
                names[directory] = _names_in(directory)
            there = names[directory]
            is_gone = there is not None and name not in there
            seen.append(replace(file, state=FileState.MISSING) if is_gone else file)
        else:
            seen.append(file)
    return seen


def _names_in(directory: str) -> AbstractSet[str] | None:
    """The names in a directory, none where it is gone; None where it cannot be read: nothing is known of its files."""
    try:
        return names_in(directory)
    except OSError:
        return None


def _put_words(connection: Connection, everything: Said) -> None:
    """What was said of runs by whoever operates them, in the order of time."""
    for pinned in sorted(everything.pinned, key=lambda pinned: pinned.at):
        replay.put_pin(connection, pinned.run, pinned.global_step, pinned=pinned.pinned, at=pinned.at)
    for tagged in sorted(everything.tagged, key=lambda tagged: tagged.at):
        replay.put_tag(connection, tagged.run, tagged.name, tagged.global_step, at=tagged.at)
    for ruled in sorted(everything.ruled, key=lambda ruled: ruled.at):
        replay.put_policy(connection, ruled.run, ruled.rules, at=ruled.at)


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
