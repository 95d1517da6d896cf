"""Brings the catalog up to date with the disk before a start is decided: adopts files, marks others gone.

A process that dies leaves unregistered files: the breakpoint that MindSpore writes after the callbacks
are gone, or a file whose registration was under way. And files vanish: MindSpore's own retention or a person
deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ckptstore.catalog import live, reads
from ckptstore.core import iterations as of_iterations
from ckptstore.core.events import later
from ckptstore.core.groups import grouped
from ckptstore.core.iterations import parse_iteration, parse_part
from ckptstore.core.limits import CLOCKS_DIFFER
from ckptstore.core.model import SCANNED, Checkpoint, Content, FileState, Kind, Skipped
from ckptstore.core.naming import above_save
from ckptstore.core.sighting import is_as_recorded
from ckptstore.disk import files, presence
from ckptstore.disk.files import is_in, listed
from ckptstore.disk.waiting import for_each
from ckptstore.errors import UnreadableError, UsageError, reason_of
from ckptstore.evidence.contents import ABNORMAL, ContentsReader, cut, read_iteration
from ckptstore.evidence.witnesses import unwitnessed_step, witnessed_by_mindspore
from ckptstore.evidence.writers import (
    LaunchFacts,
    Nested,
    Unknown,
    UnregisteredFile,
    Writers,
    before_rename,
    doubt_of,
    ended_with,
    unproven,
    unregistered_files,
    wrote,
)
from ckptstore.formats.inspect import read_checkpoint
from ckptstore.journal.copied_directories import is_original
from ckptstore.journal.recorder import Recorder, shared
from ckptstore.journal.sync import Synced, beside_unread
from ckptstore.outside import Path, time, utc_now
from ckptstore.resume import register
from ckptstore.resume.liveness import SILENT, living

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.live import Place
    from ckptstore.core.events import TrainingEnded
    from ckptstore.core.model import Launch, LaunchKey, Source
    from ckptstore.disk.files import FileFacts
    from ckptstore.formats.header import Header


_NOT_SYNCED = Synced()
_OfRank: TypeAlias = "tuple[LaunchKey, int]"  # a launch and a rank of it


@dataclass(frozen=True)
class Reconciled:
    """The files that a reconciliation adopted, marked as vanished, and skipped.

    `unread` are the paths among `skipped` that it did not read: directories that could not be listed, and files that it
    left to others. `failed` are the journals that could not be read before. `listings` has the names in the directories
    that it listed, or the error.
    """

    adopted: tuple[Checkpoint, ...] = ()
    vanished: tuple[Checkpoint, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unread: tuple[Skipped, ...] = ()
    failed: tuple[Skipped, ...] = ()
    listings: Mapping[str, frozenset[str] | OSError] = field(default_factory=dict)


def reconcile(
    database: Database,
    run_id: int,
    *,
    synced: Synced = _NOT_SYNCED,
    only: _OfRank | None = None,
    recorder: Recorder | None = None,
    of_all: bool = False,
) -> Reconciled:
    """Adopt new files, finish those in progress, mark missing ones. Can be repeated.

    No file is adopted beside a journal that was not read when the run was `synced`: that journal may have its record.
    `only` is one launch and rank to reconcile (None: every rank of the launches since the last reconciliation, or
    `of_all` launches). `recorder` records the changes (None: the shared one of this process).
    """
    every, known = _gather(database, run_id, only, of_all=of_all)
    listings = _listings(database, every)
    sources = _doubtful(every, listings, known)
    known_places = _places(database, sources)
    listings |= _listings(database, sources)  # again: a file recorded since the first look must not seem gone
    seen = _look(sources, listings, known_places)
    _leave_to_others(database, run_id, seen, synced, is_of_all=only is None)
    if not (seen.gone or seen.growing or seen.unknown):
        return Reconciled(skipped=tuple(dict.fromkeys(seen.skipped)), unread=tuple(seen.skipped), listings=listings)
    vanished, growing = _looked_up(database, run_id, seen)
    growing = _without_later(database, run_id, growing, every, seen)
    recorded = _recorded_at(database, seen, growing)
    outcomes: list[Checkpoint | Skipped] = [*seen.skipped, *(_finished(database, run_id, file) for file in growing)]
    if seen.unknown:
        facts = _launch_facts(database, run_id, sources, seen.unknown)
        database.let_go()  # each of these files is read
        outcomes += adopt(database, run_id, seen.unknown, vanished, facts, recorded=recorded)
    found: dict[str, Checkpoint] = {}
    for outcome in outcomes:
        if isinstance(outcome, Checkpoint):
            found.setdefault(outcome.path, outcome)  # newer launches come first
    adopted = _still_unrecorded(database, list(found.values()), recorded)  # others may have recorded some since
    adopted = _with_doubts(database, adopted)
    _write(recorder or shared(database), adopted, vanished, seen, recorded)
    skipped = dict.fromkeys(each for each in outcomes if isinstance(each, Skipped) and each.path not in found)
    return Reconciled(tuple(adopted), tuple(vanished), tuple(skipped), tuple(seen.skipped), listings=listings)


class _Known(NamedTuple):
    """The paths of present files in the catalog, and the ranks with a file for which comparing paths is not enough."""

    paths: set[str]
    unsettled: set[_OfRank]


@dataclass
class _Seen:
    """The result of listing the directories. `gone` and `growing` are file ids; `growing` are files in progress."""

    gone: list[str] = field(default_factory=list)
    growing: list[str] = field(default_factory=list)
    unknown: list[UnregisteredFile] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def before_rename(self) -> list[str]:
        """The paths that the unknown files of TTP had before their directories were renamed."""
        return list(dict.fromkeys(path for new in self.unknown if (path := before_rename(new.path))))


def _listings(database: Database, sources: Mapping[_OfRank, Sequence[Source]]) -> dict[str, frozenset[str] | OSError]:
    every = (source for own in sources.values() for source in own)
    directories = list(dict.fromkeys(source.directory for source in every if not source.is_nested))
    return dict(zip(directories, for_each(listed, directories, between=database.let_go_if_idle), strict=True))


def _doubtful(
    sources: dict[_OfRank, list[Source]], listings: Mapping[str, frozenset[str] | OSError], known: _Known
) -> dict[_OfRank, list[Source]]:
    """The ranks whose directories may differ from the catalog, with their sources.

    All paths are compared at once, since a job pays for this at each start and may have many ranks. Most ranks need no
    further queries.
    """
    there: set[str] = set()
    for directory, names in listings.items():
        if not isinstance(names, OSError):
            there.update(map(f"{directory}/".__add__, names))
    missing = {path.rpartition("/")[0] for path in known.paths - there}
    unknown = there - known.paths
    writers = Writers((source.directory, source) for own in (sources.values() if unknown else ()) for source in own)
    new = {
        (source.launch_key, source.rank)
        for directory, _, name in (path.rpartition("/") for path in unknown)
        for source in writers.of(directory, name)
        if wrote(source, name)
    }

    def is_doubtful(source: Source) -> bool:
        directory = source.directory
        return source.is_nested or directory in missing or isinstance(listings[directory], OSError)

    unsettled = known.unsettled | new
    return {of_rank: own for of_rank, own in sources.items() if of_rank in unsettled or any(map(is_doubtful, own))}


def _look(
    sources: Mapping[_OfRank, Sequence[Source]],
    listings: Mapping[str, frozenset[str] | OSError],
    places: Mapping[_OfRank, Sequence[Place]],
) -> _Seen:
    seen = _Seen()
    nested = Nested()
    homes = {source.directory for own in sources.values() for source in own if not source.is_nested}
    read = {home: names for home in homes if not isinstance(names := listings[home], OSError)}
    unknown = Unknown(read, {place.path for own in places.values() for place in own})
    for of_rank, own_sources in sources.items():
        there: dict[str, frozenset[str]] = {}
        roots: set[str] = set()  # of directories that come and go with their files
        own = places.get(of_rank, ())
        for source in own_sources:
            try:
                found = _names_of(source, listings, nested)
            except OSError as error:
                seen.skipped.append(Skipped(source.directory, reason_of(error)))
                continue
            there |= found
            if source.is_nested:
                roots.add(source.directory)
            likely = found if source.is_nested else unknown.of(source)
            seen.unknown += unregistered_files(source, likely, (place.path for place in own))
        for place in own:
            directory, _, name = place.path.rpartition("/")  # not by `Path`, which takes long for many ranks
            is_listed = is_in(there.get(directory, ()), name)
            if is_listed and not place.is_complete:
                seen.growing.append(place.id)
            elif place.is_complete and not is_listed and (directory in there or above_save(place.path) in roots):
                seen.gone.append(place.id)
    return seen


def _leave_to_others(database: Database, run_id: int, seen: _Seen, synced: Synced, *, is_of_all: bool) -> None:
    """Leave out unknown files of a living launch, in another directory, and beside an unread journal."""
    if seen.unknown and is_of_all:
        _leave_to_the_living(database, run_id, seen)
    if seen.unknown:
        _leave_other_directories(seen)
        _leave_to_unread_journals(seen, synced)


def _leave_to_the_living(database: Database, run_id: int, seen: _Seen) -> None:
    """Leave the files of a living launch to that launch: it alone knows the loss. Report those that are old."""
    with database.read() as connection:
        key = living(connection, run_id)
    theirs = [new for new in seen.unknown if new.source.launch_key == key]
    seen.unknown = [new for new in seen.unknown if new.source.launch_key != key]
    for new in theirs:
        found = files.facts_if_seen(new.path)
        if found is not None and time.time() - found.mtime_ns / 1e9 > SILENT.total_seconds():
            seen.skipped.append(Skipped(new.path, "its launch is alive, and has not registered it"))


def _looked_up(database: Database, run_id: int, seen: _Seen) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """The records of the files that are gone, and of those still in progress."""
    with database.read() as connection:
        known = reads.files_by_id(connection, [*seen.gone, *seen.growing])
        unseen = [known[id_] for id_ in seen.gone if id_ in known]
        is_told = all(file.directory_id for file in unseen)
        places = {} if is_told else presence.unidentified(reads.recorded_paths(connection, run_id))
    growing = (known[id_] for id_ in seen.growing if id_ in known)
    return (
        presence.gone(unseen, places),
        [file for file in growing if file.state is FileState.IN_PROGRESS],  # the others were finished since
    )


def _without_later(
    database: Database,
    run_id: int,
    growing: Sequence[Checkpoint],
    sources: Mapping[_OfRank, Sequence[Source]],
    seen: _Seen,
) -> list[Checkpoint]:
    """Skip unfinished files that a later launch may have written instead; return the others.

    That launch uses the same names, since the file was not there when it began.
    """
    if not growing:
        return []
    with database.read() as connection:
        orders = {launch.key: launch.order for launch in reads.launches_of(connection, run_id)}
    found: dict[str, Skipped] = {}
    writers = Writers((source.directory, source) for own in sources.values() for source in own)
    for file in growing:
        directory, _, name = file.path.rpartition("/")
        for source in writers.of(directory, name):
            is_later = orders.get(source.launch_key, 0) > orders.get(file.launch_key, 0)
            if is_later and wrote(source, name):
                found[file.path] = Skipped(file.path, unproven(source, file.run, file.launch))
    seen.skipped += found.values()
    return [file for file in growing if file.path not in found]


def _recorded_at(database: Database, seen: _Seen, growing: Sequence[Checkpoint]) -> dict[str, list[Checkpoint]]:
    """The catalog's records at the paths of these files, and at the paths that files of TTP had before."""
    paths = [*(new.path for new in seen.unknown), *(file.path for file in growing), *seen.before_rename()]
    with database.read() as connection:
        return reads.files_at_paths(connection, paths)


def _leave_other_directories(seen: _Seen) -> None:
    """Skip files that a launch cannot have written: it saved to another directory, which was mounted at that path."""
    of_source = {(new.source.directory, new.source.directory_id) for new in seen.unknown if new.source.directory_id}
    reasons = {key: presence.absence(key[0], presence.Home({key[1]}, set())) for key in of_source}
    unknown, seen.unknown = seen.unknown, []
    for new in unknown:
        reason = reasons.get((new.source.directory, new.source.directory_id))
        if reason:
            seen.skipped.append(Skipped(new.path, f"its directory {reason}"))
        else:
            seen.unknown.append(new)


def _leave_to_unread_journals(seen: _Seen, synced: Synced) -> None:
    """Skip files beside a journal that was not read: it may have their records."""
    reasons = beside_unread(synced, [new.path for new in seen.unknown])
    seen.unknown = [new for new in seen.unknown if new.path not in reasons]
    seen.skipped += [Skipped(path, reason) for path, reason in reasons.items()]


def _with_doubts(database: Database, adopted: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Quarantine each file whose rank had a quarantined save before it, as with a loss of NaN: it is as doubtful."""
    with database.read() as connection:
        doubts = [live.quarantine_before(connection, file) for file in adopted]
    return [
        replace(file, quarantine=f"it was saved after step {doubt.step}, and of that {doubt.reason}")
        if doubt.reason and not file.quarantine
        else file
        for file, doubt in zip(adopted, doubts, strict=True)
    ]


def _names_of(
    source: Source, listings: Mapping[str, frozenset[str] | OSError], nested: Nested
) -> dict[str, frozenset[str]]:
    if source.is_nested:
        return nested.list(source)
    found = listings[source.directory]
    if isinstance(found, OSError):
        raise found
    return {source.directory: found}


def _write(
    recorder: Recorder,
    adopted: Sequence[Checkpoint],
    vanished: Sequence[Checkpoint],
    seen: _Seen,
    recorded: Mapping[str, Sequence[Checkpoint]],
) -> None:
    """Record the adopted files, and mark the vanished ones as moved or missing."""
    others = (file for path in seen.before_rename() for file in recorded.get(path, ()))
    new = grouped((_of_state(file), file) for file in adopted)  # not each with each: they may be of thousands of ranks
    moved = {
        file.id: file
        for file in (*vanished, *others)
        if any(_is_moved(file, other) for other in new.get(_of_state(file), ()))
    }
    missing = [file for file in vanished if file.id not in moved]
    for some, state in ((missing, FileState.MISSING), (list(moved.values()), FileState.MOVED)):
        if some:
            recorder.mark(some, state)
    if adopted:
        recorder.adopt(adopted)


def _of_state(file: Checkpoint) -> tuple[str, int, int]:
    return file.launch, file.global_step, file.rank


def _is_moved(file: Checkpoint, other: Checkpoint) -> bool:
    return replace(file, path=other.path, directory_id=other.directory_id) == other


def _still_unrecorded(
    database: Database, files: Sequence[Checkpoint], recorded: Mapping[str, Sequence[Checkpoint]]
) -> list[Checkpoint]:
    with database.read() as connection:
        now = reads.files_at_paths(connection, [file.path for file in files])
    return [file for file in files if _by_id(now.get(file.path, ())) == _by_id(recorded.get(file.path, ()))]


def _by_id(files: Sequence[Checkpoint]) -> dict[str, Checkpoint]:
    return {file.id: file for file in files}


def _gather(
    database: Database, run_id: int, only: _OfRank | None, *, of_all: bool
) -> tuple[dict[_OfRank, list[Source]], _Known]:
    with database.read() as connection:
        asked = {only[0]} if only else reads.saving(connection, run_id)
        if not (only or of_all):
            asked = _recent(connection, reads.launches_of(connection, run_id), asked)
        every = reads.sources_of_launches(connection, asked)  # not of all launches: each has one for each rank
        sources = grouped(((source.launch_key, source.rank), source) for source in every)
        if only is not None:
            sources = {of_rank: own for of_rank, own in sources.items() if of_rank == only}
        if not sources:
            return {}, _Known(set(), set())
        paths, has_unsettled = live.paths(connection, asked)
        return sources, _Known(paths, live.unsettled(connection, asked) if has_unsettled else set())


def _places(database: Database, of_ranks: Iterable[_OfRank]) -> dict[_OfRank, list[Place]]:
    ranks = grouped(of_ranks)
    if not ranks:
        return {}
    with database.read() as connection:
        return grouped(
            ((key, place.rank), place) for key, some in ranks.items() for place in live.places(connection, key, some)
        )


def _launch_facts(
    database: Database,
    run_id: int,
    sources: Mapping[_OfRank, Sequence[Source]],
    unknown: Sequence[UnregisteredFile],
) -> LaunchFacts:
    directories = {new.source.directory for new in unknown}
    ended = {new.source.launch_key for new in unknown if new.kind is not Kind.PERIODIC}
    keys = {key for key, _ in sources}
    with database.read() as connection:
        launches = {launch.key: launch for launch in reads.launches_of(connection, run_id)}
        every = reads.sources_in(connection, directories)
        every.sort(key=lambda source: source.launch_key not in launches)  # those of other runs come last
        others = (reads.launch(connection, key) for key in {source.launch_key for source in every} - launches.keys())
        launches |= {launch.key: launch for launch in others if launch is not None}
        return LaunchFacts(
            launches=_dated(launches.values()),
            endings=reads.endings_of(connection, launches, {source.rank for source in every}),
            lags={key: reads.lag(connection, launches[key]) for key in keys},
            sources=Writers((source.directory, source) for source in every),
            registered={each for each in keys if live.has_any(connection, each)},
            counters=live.counters(connection, ended),
        )


def _dated(launches: Collection[Launch]) -> dict[LaunchKey, Launch]:
    """The launches, without the moments that no clock told rightly: by these, all files would seem older.

    Such a moment is in the future, or comes right after that of another launch, whose clock was ahead (`next_moment`).
    """
    ahead = utc_now() + CLOCKS_DIFFER
    pushed = {
        (each.run, later(each.created_at, each.created_at))
        for each in launches
        if each.created_at and not each.id.startswith(SCANNED)  # a scan puts those right before others
    }
    return {
        each.key: replace(each, created_at=None)
        if each.created_at and (each.created_at > ahead or (each.run, each.created_at) in pushed)
        else each
        for each in launches
    }


def _recent(connection: Connection, launches: Sequence[Launch], saving: set[LaunchKey]) -> set[LaunchKey]:
    """The launches since the last one that reconciled: a launch that asked where to start reconciled before.

    Launches before it are included until it has finished a save: the files that they were writing are the newest state.
    """
    recent: set[LaunchKey] = set()
    for launch in reversed(launches):
        if launch.key in saving:
            recent.add(launch.key)
            if launch.decided and live.has_finished(connection, launch.key):
                break
    return recent


def _finished(database: Database, run_id: int, file: Checkpoint) -> Checkpoint | Skipped:
    try:
        expected = register.parameters_of(database, run_id, file.rank, but=file.path)
        whole = register.measured(file, prove_step=True, expected=expected)
    except (OSError, UsageError) as error:
        return Skipped(file.path, reason_of(error))
    return whole or Skipped(file.path, "it is being written, is cut, or holds another step")


def adopt(
    database: Database,
    run_id: int,
    found: list[UnregisteredFile],
    gone: Iterable[Checkpoint],
    facts: LaunchFacts,
    *,
    recorded: Mapping[str, Sequence[Checkpoint]],
) -> Iterator[Checkpoint | Skipped]:
    """The records of these files. A file that is back or was moved keeps its record, any other gets a new one.

    `recorded` has the catalog's records at their paths, and at the paths that files of TTP had before.
    """

    @cache
    def expected(rank: int, share_of: LaunchKey | None) -> frozenset[str]:
        return register.parameters_of(database, run_id, rank, share_of=share_of)

    reader = ContentsReader()
    moved = grouped(((file.launch, file.rank, file.size, file.mtime_ns), file) for file in gone)
    for new in found:
        records = recorded.get(new.path, ())
        if any(file.state.is_there for file in records):
            continue
        try:
            here = files.facts(new.path)
        except OSError as error:
            yield Skipped(new.path, reason_of(error))
            continue
        if here is None:
            continue
        back = [file for file in records if file.size is not None and is_as_recorded(file, here.size, here.mtime_ns)]
        gone_here = moved.get((new.source.launch, new.source.rank, here.size, here.mtime_ns), [])
        is_copy = bool(back) and not gone_here and all(_is_copy(database, facts, file) for file in back)
        if is_copy or any(file.state is FileState.TRASHED for file in back):  # gc has yet to move a trashed one
            continue
        before = recorded.get(before_rename(new.path), ())
        others = [
            file
            for file in before
            if file.launch_key != new.source.launch_key and is_as_recorded(file, here.size, here.mtime_ns)
        ]
        likely = back or gone_here
        try:
            others += _copied(new, records, here) if not likely else ()
            same = _same(new.path, likely)
        except OSError as error:
            yield Skipped(new.path, reason_of(error))
            continue
        if others and not back:
            yield _of_another_launch(new, others[0])
            continue
        if same is not None:
            yield replace(same, path=new.path, state=FileState.COMPLETE)
        else:
            replaced = bool(before) and not any(is_as_recorded(file, here.size, here.mtime_ns) for file in before)
            record = _adopted(new, here, facts, reader, partial(expected, new.source.rank), replaced=replaced)
            yield from _if_as_recorded(database, facts, record, records)


def _is_copy(database: Database, facts: LaunchFacts, file: Checkpoint) -> bool:
    """Whether the file at the old path of a moved one is a copy: not if the moved one is gone from its new path."""
    if file.state is not FileState.MOVED:
        return False
    launch = facts.launches.get(file.launch_key)
    with database.read() as connection:
        others = () if launch is None else reads.files_at(connection, launch, file.global_step)
    renamed = [other.state for other in others if _place_of(other) == _place_of(file)]
    return not renamed or any(state is not FileState.MISSING for state in renamed)


def _place_of(file: Checkpoint) -> tuple[object, ...]:
    """The facts that stay the same if a file is renamed in its directory."""
    return file.path.rpartition("/")[0], file.save_id, file.rank, file.size, file.mtime_ns


def _if_as_recorded(
    database: Database, facts: LaunchFacts, file: Checkpoint | Skipped, records: Iterable[Checkpoint]
) -> Iterator[Checkpoint | Skipped]:
    """Yield the file; `Skipped` if its bytes are not those recorded for it, as in a bad copy; nothing for a copy."""
    if isinstance(file, Skipped):
        yield file
        return
    before = next((each for each in records if each.id == file.id), None)
    if before is not None and before.digest not in (None, file.digest):
        detail = f"its bytes are not those that were recorded for step {file.global_step} of launch {file.launch}"
        yield Skipped(file.path, detail)
    elif not (_is_copy(database, facts, before) if before else _has_original(database, facts, file)):
        yield file


def _has_original(database: Database, facts: LaunchFacts, file: Checkpoint) -> bool:
    """Whether its rank recorded the same bytes in another directory, and they are still there: a tree was copied."""
    with database.read() as connection:
        others = reads.files_at(connection, facts.launches[file.launch_key], file.global_step)
    home = file.path.rpartition("/")[0]
    alike = (file.kind, file.rank, file.digest, FileState.COMPLETE)
    return any(
        (other.kind, other.rank, other.digest, other.state) == alike
        and other.path.rpartition("/")[0] != home
        and is_original(other)
        for other in others
    )


def _copied(new: UnregisteredFile, records: Sequence[Checkpoint], here: files.FileFacts) -> list[Checkpoint]:
    """Records of other launches at this path with the file's bytes: it was copied there, as out of the trash."""
    alike = [file for file in records if file.launch_key != new.source.launch_key and file.size == here.size]
    digest = files.digest(new.path) if any(file.digest is not None for file in alike) else None
    return [file for file in alike if digest is not None and file.digest == digest]


def _of_another_launch(new: UnregisteredFile, file: Checkpoint) -> Checkpoint | Skipped:
    """The record of a file in a directory of TTP that a later launch renamed, with its new path.

    `Skipped` if the file was not moved.
    """
    try:
        is_moved = files.facts(file.path) is None
    except OSError:
        is_moved = False
    if is_moved and file.state in (FileState.COMPLETE, FileState.MISSING):
        return replace(file, path=new.path, state=FileState.COMPLETE)
    return Skipped(new.path, f"it is what launch {file.launch} wrote to {file.path}")


def left_at(
    ending: TrainingEnded, launch: Launch, sources: Sequence[Source], known: Iterable[str], expected: frozenset[str]
) -> list[Checkpoint]:
    """The records of the breakpoints that a rank left when its training ended so. Called by that rank.

    `sources` are its own, `known` its registered files in them, `expected` the parameters that a whole file has.
    Raises `OSError` if a directory cannot be listed.
    """
    told = LaunchFacts(_dated([launch]), {(launch.key, ending.rank): ending}, {launch.key: 0}, Writers(()))
    found: dict[str, Checkpoint] = {}
    reader = ContentsReader()
    for source in sources:
        names = {source.directory: files.names_in(source.directory)}
        for new in unregistered_files(source, names, {*known, *found}):
            here = files.facts(new.path) if new.is_breakpoint else None
            record = _adopted(new, here, told, reader, lambda _: expected, replaced=False) if here is not None else None
            if isinstance(record, Checkpoint) and record.optimizer_step == ending.optimizer_step:
                found[record.path] = record
    return list(found.values())


def _same(path: str, likely: Sequence[Checkpoint]) -> Checkpoint | None:
    """The record of a file among those `likely` by size and time: several if the file system stores whole seconds.

    A launch gives no name with a step in it twice: a single likely record of that name is taken without reading.
    """
    if len(likely) == 1 and Path(likely[0].path).name == Path(path).name:
        return likely[0]
    if any(file.digest is not None for file in likely):
        digest = files.digest(path)
        return next((file for file in likely if file.digest == digest), None)
    try:
        counter = read_checkpoint(Path(path)).optimizer_step if likely else None
    except UnreadableError:
        return None
    return next((file for file in likely if counter is not None and file.optimizer_step == counter), None)


def _adopted(
    new: UnregisteredFile,
    here: FileFacts,
    facts: LaunchFacts,
    reader: ContentsReader,
    expected: Callable[[LaunchKey | None], frozenset[str]],
    *,
    replaced: bool,
) -> Checkpoint | Skipped:
    """The record of an unregistered file, with a proven step: the name alone proves none.

    `expected` returns the parameters that whole files of its rank have; of shares, those in a launch. `replaced`: it is
    not the file recorded at this place before the directory was renamed.
    """
    launch = facts.launches[new.source.launch_key]
    if new.source.content is Content.PART:
        return _adopted_part(new, launch, facts)
    # At an exception, an exit or a fault the whole state is written.
    told = new.source.content if new.kind is Kind.PERIODIC else None
    read = reader.read(new.path, told or Content.FULL, launch.key)
    if isinstance(read, Skipped):
        return read
    header = read.header
    of_share = launch.key if read.content is Content.SHARE else None
    doubt = "" if read.content is Content.WEIGHTS else cut(header, expected(of_share))
    doubt = doubt or doubt_of(new, header, here, facts, replaced=replaced)
    step = None if doubt else _step(launch, new, header, facts)
    if step is None:
        return Skipped(new.path, doubt or _why_no_step(new.kind, header))
    try:
        described = register.describe(
            launch,
            rank=new.source.rank,
            path=new.path,
            kind=new.kind,
            global_step=step,
            optimizer_step=header.optimizer_step,
            content=read.content,
            quarantine=_quarantine(new, step, facts),
        )
        return register.measured(described) or Skipped(new.path, "it changed while it was read")
    except (OSError, UsageError) as error:
        return Skipped(new.path, reason_of(error))


def _adopted_part(new: UnregisteredFile, launch: Launch, facts: LaunchFacts) -> Checkpoint | Skipped:
    """The record of a file in the directory of an iteration. The directory and common.json must agree on its step."""
    path = Path(new.path)
    step = parse_iteration(path.parent.name) or 0
    try:
        header = read_checkpoint(path) if parse_part(path.name) else None
        counter = header.optimizer_step if header else None
        iteration = read_iteration(path.parent, step, {path.name: counter} if header else {})
        if doubt := of_iterations.doubt(iteration):
            return Skipped(new.path, doubt)
        described = register.describe(
            launch,
            rank=new.source.rank,
            path=new.path,
            kind=Kind.PERIODIC,
            global_step=step,
            optimizer_step=of_iterations.optimizer_step(iteration, path.name),
            content=Content.PART,
            quarantine=ABNORMAL if iteration.common and iteration.common.is_abnormal else _quarantine(new, step, facts),
        )
        return register.measured(described) or Skipped(new.path, "it changed while it was read")
    except (OSError, UnreadableError, UsageError) as error:
        return Skipped(new.path, reason_of(error))


def _step(launch: Launch, new: UnregisteredFile, header: Header, facts: LaunchFacts) -> int | None:
    lag = facts.lags[launch.key]
    if new.kind in (Kind.GRACEFUL_EXIT, Kind.TTP):
        return witnessed_by_mindspore(
            header.info.get("step_num"), new.named_step, optimizer_step=header.optimizer_step, lag=lag
        )
    ending = facts.ending_of(new.source)
    if new.is_breakpoint and ending is not None and ended_with(new.source, new, header, facts):
        return ending.global_step
    if new.name is None or header.optimizer_step is None or launch.steps_per_epoch is None:
        return None
    return unwitnessed_step(
        new.name,
        steps_per_epoch=launch.steps_per_epoch,
        base_step=launch.start_step or 0,
        optimizer_step=header.optimizer_step,
        lag=lag,
    )


def _why_no_step(kind: Kind, header: Header) -> str:
    if header.optimizer_step is None and kind in (Kind.PERIODIC, Kind.DYING_GASP):
        return "nothing in it counts its updates, so its step is not certain"
    return "its name, its content and the launch's history disagree on its step"


def _quarantine(new: UnregisteredFile, step: int, facts: LaunchFacts) -> str:
    ending = facts.ending_of(new.source)
    return ending.quarantine if ending is not None and ending.global_step == step else ""
