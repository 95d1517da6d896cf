"""Projects the events of journals into the catalog, and appends to journals the lines that they could not take before.

Any process may do this at any time, and repeat it.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.catalog import directories, journals, reads
from ckptstore.catalog.journals import ReadTo
from ckptstore.catalog.project import project
from ckptstore.catalog.runs import called_in
from ckptstore.core import limits
from ckptstore.core.events import FileRecorded, from_lines
from ckptstore.core.groups import grouped
from ckptstore.core.model import FileState, Skipped
from ckptstore.core.naming import above_save
from ckptstore.disk import presence
from ckptstore.disk.files import absolute, is_in, names_in, real_directory
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import Home
from ckptstore.disk.run_directories import root_of
from ckptstore.disk.trust import ROOT, Trust
from ckptstore.disk.waiting import for_each, portions
from ckptstore.disk.walk import LOST_AND_FOUND, shown
from ckptstore.errors import CatalogForbidsError, UnknownRunError, UsageError, reason_of
from ckptstore.journal import jsonl, summaries
from ckptstore.journal.accept import Acceptor, why_not
from ckptstore.journal.copied_directories import copied_journals, copies_read, of_copy
from ckptstore.journal.jsonl import SHARED, JournalWriter, nearest
from ckptstore.journal.layouts import layout_by
from ckptstore.outside import Path, os, token_hex

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.journals import Unwritten
    from ckptstore.catalog.project import Projected
    from ckptstore.core.model import Checkpoint, LaunchKey
    from ckptstore.journal.accept import Accepted
    from ckptstore.journal.jsonl import Contents

log = logging.getLogger("ckptstore")

_BYTES = 16 << 20  # of journals in one transaction: a long journal is taken up in pieces
_NOTHING = ReadTo()
_AWAY = "was not there (or its .ckptstore) when the journals were read; a journal may have a pin or tag of this state"


@dataclass(frozen=True)
class Synced:
    """The result of a sync: how many journals were found and read, new or changed records, and unusable lines.

    - `spoiled` counts lines that are torn, or of other programs. `runs` are the runs that the journals name.
    - `unreadable` are the skipped places that could not be read at all, or are not trusted: journals, and directories
      that may have some. They are a part of `skipped`. `failed` are the journals of them that could not be read, and
      those with lines of a launch of which no journal tells when it began.
    - `refused` are events that the owner of the journal has no right to write.
    - `away` are directories whose folder of journals is missing though the catalog knows it: its newer events are
      unknown.
    - `left_out` are records of files whose launch no journal tells of. `new` are the ids of files that are new to the
      catalog.
    - `copies` are the copied journals, each with its originals.
    """

    journals: int = 0
    read: int = 0
    records: int = 0
    spoiled: int = 0
    runs: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unreadable: tuple[Skipped, ...] = ()
    failed: tuple[Skipped, ...] = ()
    refused: tuple[Skipped, ...] = ()
    away: tuple[str, ...] = ()
    left_out: tuple[Checkpoint, ...] = ()
    new: tuple[str, ...] = ()
    copies: tuple[tuple[str, Sequence[str]], ...] = ()


def sync(database: Database, named: str | Path | None, trust: Trust | None) -> Synced:
    """Sync the journals of a run, of every run (None), or below a directory: a `Path`, or a name with a slash.

    A string that is the name of a run is the run. `trust` is the users whose journals are believed (None: the users
    that the environment names). Raises `UnknownRunError`, and `UsageError` for a path that is no directory.
    """
    if isinstance(named, Path) or (named is not None and "/" in named and not _is_run(database, named)):
        return as_called(database, sync_below(database, Path(named), trust))
    with database.read() as connection:
        if named is None:
            ids = list(reads.names_of_runs(connection))
        elif reads.run_id(connection, named) is None:
            raise UnknownRunError(f"no run {named!r} in {database.name}", "give the directory that its files are in")
        else:
            ids = [called_in(connection, database, named).id]
    total = Synced()
    for run_id in ids:
        total = _added(total, sync_run(database, run_id, trust))
    return as_called(database, total)


def as_called(database: Database, synced: Synced) -> Synced:
    """The result with the present names of the runs: journals have the first name of each."""
    with database.read() as connection:
        called = {run: reads.called(connection, run) for run in synced.runs}
    return replace(synced, runs=tuple(sorted(found.name if found else run for run, found in called.items())))


def _is_run(database: Database, name: str) -> bool:
    if not limits.is_text(name):  # the name of a directory need not be UTF-8
        return False
    with database.read() as connection:
        return reads.run_id(connection, name) is not None


def sync_run(
    database: Database, run_id: int, trust: Trust | None = None, seen: Mapping[str, int] = MappingProxyType({})
) -> Synced:
    """Sync the journals of a run: those that the catalog knows, and others in the same folders.

    Events that the journals could not accept earlier are written to them first. Journals that moved together with the
    working directory are found: the job's script may save to a relative path. `seen` are the sizes of segments that
    were just listed: their folders are not listed again.
    """
    with database.read() as connection:
        known = journals.journals_of(connection, run_id)
        lacking = journals.unwritten_lines(connection, run_id)
        identities = {own for each in lacking for own in each.home["identities"]}
        # Their tree may have been moved.
        seen_at = directories.of_identities(connection, identities) if identities else {}
    _append(database, lacking, seen_at)
    folders = {path.rpartition("/")[0] for path in known} - {path.rpartition("/")[0] for path in seen}
    sizes, hidden, away = _sizes(database, sorted(folders))
    sizes |= seen
    unseen = {each.path for each in hidden}
    gone = {path: at for path, at in known.items() if path not in sizes and path.rpartition("/")[0] not in unseen}
    sizes |= _sizes_of(_moved_along(gone))
    told = _known(database, sizes.keys() - known.keys(), trust)
    told = told._replace(read_to=known | told.read_to)
    done = _take_up_grown(database, sizes, told, look=True, trust=trust)
    return _added(Synced(skipped=hidden, unreadable=hidden, away=away), done)


@contextmanager
def as_far_as_allowed(run: str) -> Iterator[None]:
    """For a caller that only reads: a login without the right to update this run goes on with what the catalog has."""
    try:
        yield
    except CatalogForbidsError as error:
        log.warning("run %s is read from the catalog alone, without newer lines of its journals: %s", run, error)


def _moved_along(gone: Mapping[str, ReadTo]) -> list[str]:
    """The present paths of missing journals, if they moved together with this process's working directory."""
    of_root = grouped((root_of(jsonl.directory_of(path)), path) for path in sorted(gone))
    found: list[str] = []
    for paths in of_root.values():
        first = paths[0]
        depths = range(1, len(Path(first).parts) - 2)
        depth = next((each for each in depths if _below_here(first, each, gone[first])), 0)
        found += [here for path in paths if depth and (here := _below_here(path, depth, gone[path]))]
    return found


def _below_here(path: str, depth: int, known: ReadTo) -> str:
    """The journal below the working directory that has the path's parts from that depth on; empty if there is none.

    It has at least the bytes that were read before: no run continues from an older copy of a tree by itself.
    """
    here = absolute(Path(*Path(path).parts[depth:]))
    length = jsonl.size(here)
    return here if length is not None and length >= known.end else ""


def sync_below(database: Database, root: Path, trust: Trust | None) -> Synced:
    """Sync all journals below a directory, finished ones too.

    Raises `UsageError` if the path is no directory.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory", "give a run, or the directory that the checkpoints are in")
    sizes, hidden = found_below([real_directory(root)], with_directories=True)
    beside, unseen = _beside_originals(database, sizes, trust)
    hidden += unseen
    # All together: of a run that the catalog knew before, journals cannot remove protection.
    taken = take_up_found(database, beside | sizes, trust=trust, whole=True)
    synced = _added(Synced(skipped=hidden, unreadable=hidden), taken)
    with database.read() as connection:
        return replace(synced, runs=tuple(journals.runs_told(connection, list(sizes))))


def _beside_originals(
    database: Database, sizes: Mapping[str, int], trust: Trust | None
) -> tuple[dict[str, int], tuple[Skipped, ...]]:
    """The sizes of all journals beside the originals of those that are new copies, and what cannot be read there.

    The catalog may not know yet what became of the original files, nor the journals of the newest launches there.
    """
    known = _known(database, sizes.keys(), trust)
    new = [originals for path, originals in known.copies.items() if path not in known.read_to]
    folders = {original.rpartition("/")[0] for originals in new for original in originals}
    beside, hidden, _ = _sizes(database, sorted(folders))
    return beside, hidden


def found_below(roots: Iterable[str], *, with_directories: bool = False) -> tuple[dict[str, int], tuple[Skipped, ...]]:
    """The sizes of the journals below some directories, and the journals and folders that cannot be read or named.

    Links are not followed. `with_directories`: also the unreadable directories that may have journals.
    """
    hidden: list[Skipped] = []

    def pass_over(error: OSError) -> None:
        if with_directories and not isinstance(error, FileNotFoundError):
            hidden.append(Skipped(shown(str(error.filename)), reason_of(error)))

    found: dict[str, int] = {}
    for root in roots:
        there: dict[str, int] = {}
        for directory, below, _ in os.walk(root, onerror=pass_over):
            below[:] = (name for name in below if name != LOST_AND_FOUND)
            if FOLDER in below:
                below.remove(FOLDER)
                sizes = _sizes_in(str(Path(directory) / FOLDER)) or {}
                if isinstance(sizes, Skipped):
                    hidden.append(sizes)
                else:
                    there |= sizes
        for path, size in there.items():
            try:
                found[limits.path(path)] = size
            except ValueError as error:  # noqa: PERF203 — the others are read all the same
                hidden.append(Skipped(ascii(path)[1:-1], f"its path is {error}"))
    return found, tuple(hidden)


def take_up_own(database: Database, paths: Iterable[str]) -> None:
    """Sync journals that this process writes: none is a copy, though a backup of it may have been read before it."""
    if sizes := _sizes_of(paths):
        with database.read() as connection:
            known = _Known(journals.read_to(connection, sorted(sizes)))
        _take_up_grown(database, sizes, known, look=False, trust=None)


def take_up_found(
    database: Database,
    sizes: Mapping[str, int],
    *,
    look: bool = True,
    trust: Trust | None = None,
    whole: bool = False,
    copies: bool = False,
) -> Synced:
    """Sync journals that were found on disk, with these sizes; `look`: check whether the files in them exist.

    For finished segments the summary is read, if there is one and not `whole`. Copies are read once, if `whole`, and
    whenever they have grown, if `copies`. A journal that the catalog knows under a path that is a link by now is
    skipped: its files would count twice.
    """
    known = _known(database, sizes.keys(), trust)
    return _take_up_grown(database, sizes, known, look=look, trust=trust, whole=whole, copies=copies)


class _Known(NamedTuple):
    """How far journals were read; those that the catalog knows under another path; and copies, with their originals."""

    read_to: dict[str, ReadTo] = {}  # noqa: RUF012 — nobody changes it
    others: AbstractSet[str] = frozenset()
    copies: Mapping[str, Sequence[str]] = MappingProxyType({})


def _known(database: Database, paths: AbstractSet[str], trust: Trust | None) -> _Known:
    if not paths:
        return _Known()
    with database.read() as connection:
        known = journals.read_to(connection, sorted(paths))
        asked = {path for path in paths if path not in known or known[path].is_copy}
        named = journals.journals_named(connection, {path.rpartition("/")[2] for path in asked}) if asked else set()
    real = {absolute(path) for path in named - asked}
    others = {path for path in asked - known.keys() if absolute(path) in real}
    return _Known(known, others, copied_journals(asked - others, named - asked, trust or Trust.of()))


def read_so_far(database: Database, of_run: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """How many bytes of each journal the catalog has: of the run's, and of the others that a sync would find.

    `of_run` was read before the sizes. A journal that grew in between then counts as not fully read, as it should.
    """
    told = _known(database, sizes.keys() - of_run.keys(), None)
    ends = {path: min(to.end, sizes[path]) for path, to in told.read_to.items()}
    return {**of_run, **ends, **{path: sizes[path] for path in told.others | told.copies.keys()}}


def _sizes_of(paths: Iterable[str]) -> dict[str, int]:
    return {path: size for path in paths if (size := jsonl.size(path)) is not None}


def _take_up_grown(
    database: Database,
    sizes: Mapping[str, int],
    known: _Known,
    *,
    look: bool,
    trust: Trust | None,
    whole: bool = False,
    copies: bool = False,
) -> Synced:
    """Sync the segments that have grown to these sizes; `look`: check whether the files in them exist.

    A segment that was read to this size is not opened. `whole`: read the segments themselves, not their summaries, and
    new copies. `copies`: read copies, also those that have grown.
    """
    sizes = {path: size for path, size in sizes.items() if path not in known.others}
    reading = _Reading(database, trust, known.copies)
    total = Synced(journals=len(sizes), copies=tuple(known.copies.items()))
    new: list[str] = []
    places: list[_Place] = []
    for path, size in sorted(sizes.items()):
        before = known.read_to.get(path, _NOTHING)
        if before.is_copy and path in known.copies and not copies:
            continue
        is_original = before.is_copy and path not in known.copies  # the one that it was copied from is gone
        if is_original or (whole and before.by_summary):
            before = _NOTHING
        if size > before.end:
            places.append(_Place(path, before, before.end))
    if not whole:
        new_copies = [place for place in places if copies and place.path in known.copies and not place.before.end]
        places = [*_by_summaries(places, sizes, known.copies), *new_copies]
    age = {place.path: len(known.copies.get(place.path, ())) for place in places}
    in_turn = grouped(((age[place.path], reading.is_strangers(place.path)), place) for place in places)
    for turn in sorted(in_turn):  # originals before their copies, journals of trusted users before those of others
        for portion in portions(
            in_turn[turn], _BYTES, lambda each: each.summary.end if each.summary else sizes[each.path]
        ):
            total = _added(total, reading.read(portion, new))
    if look and new:
        _mark_gone(database, new)
    return replace(total, new=tuple(new))


def _by_summaries(places: Sequence[_Place], sizes: Mapping[str, int], copies: Collection[str]) -> list[_Place]:
    """The places to read: a summary replaces the segments that were never read. New copies are left out."""
    unread = {place.path for place in places if not place.before.end and place.path not in copies}
    found: list[_Place] = []
    for summary in summaries.of(unread):
        covered = {path: size for path, size in summary.covers.items() if path in unread and sizes[path] == size}
        if covered:
            found.append(_Place(summary.path, _NOTHING, 0, summary.contents, covered))
            unread -= covered.keys()
    return [*found, *(place for place in places if place.before.end or place.path in unread)]


def _sizes(database: Database, folders: Sequence[str]) -> tuple[dict[str, int], tuple[Skipped, ...], tuple[str, ...]]:
    """The sizes of the journals in these folders; the folders that cannot be read; the directories without a folder."""
    sizes: dict[str, int] = {}
    skipped: list[Skipped] = []
    away: list[str] = []
    for folder, found in zip(folders, for_each(_sizes_in, folders, between=database.let_go_if_idle), strict=True):
        if isinstance(found, Skipped):
            skipped.append(found)
        elif found is None:
            away.append(folder.rpartition("/")[0] or "/")
        else:
            sizes |= found
    return sizes, tuple(skipped), tuple(away)


def _sizes_in(folder: str) -> dict[str, int] | Skipped | None:
    try:
        return jsonl.sizes_in(folder)
    except OSError as error:
        return Skipped(folder, reason_of(error))


class _Place(NamedTuple):
    """Where to read a segment: the next offset, and the one up to which all lines were used. Others are read again.

    For a summary: its entries, and the segments that it replaces, with their sizes. `others`: see `Accepted`.
    """

    path: str
    before: ReadTo
    used: int
    summary: Contents | None = None
    covers: Mapping[str, int] = {}
    others: Mapping[LaunchKey | None, str] = {}


class _Reading:
    """Reads journals, and projects the events that their owners have the right to write.

    `originals` are the journals that were copied, by the paths of their copies.
    """

    def __init__(self, database: Database, trust: Trust | None, originals: Mapping[str, Sequence[str]]) -> None:
        self._database = database
        self._trust = trust or Trust.of()
        self._originals = originals

    @cached_property
    def _runs_before(self) -> frozenset[str]:
        """The runs that the catalog had before anything was taken up."""
        with self._database.read() as connection:
            return reads.first_names(connection)

    def is_strangers(self, path: str) -> bool:
        """Whether a journal belongs to a user who is not trusted: of runs of one name, the reader's own counts.

        A shared one of root is its directory's owner's: root may pin or delete there, and the run is not root's.
        """
        with suppress(OSError):
            owner, home_owner = jsonl.owners(path)
            is_roots = owner == ROOT and Path(path).name.startswith(SHARED)
            return not self._trust.is_full(home_owner if is_roots else owner)
        return True

    def read(self, places: Iterable[_Place], new: list[str]) -> Synced:
        """Sync segments from where the last sync ended; add the ids of files new to the catalog to `new`."""
        done, left = self._read_pieces(places, new)
        while left:
            more, left = self._read_pieces(left, new)
            done = _added(done, replace(more, read=0))
        return done

    def _read_pieces(self, places: Iterable[_Place], new: list[str]) -> tuple[Synced, list[_Place]]:
        """Project a piece of each journal; return the places where the longer ones go on."""
        runs_before = self._runs_before
        skipped: list[Skipped] = []
        failed: list[Skipped] = []
        opened = self._opened(places, skipped, failed)
        skipped += failed
        read = {path: contents for path, (_, contents) in opened.items()}
        told: dict[str, Accepted] = {}
        ends: dict[str, ReadTo] = {}
        copied = {
            path: from_lines(read[path].entries, jsonl.directory_of(path))[0]
            for path in self._originals.keys() & read.keys()
        }
        copies = copies_read(self._database, copied, self._originals)

        def work(connection: Connection) -> Projected:
            acceptor = Acceptor(connection, self._trust, runs_before, read.values())
            told.update((path, acceptor.accept(path, own, opened[path][0].others)) for path, own in read.items())
            events = [
                event
                for path, own in told.items()
                for event in (map(of_copy, own.events, repeat(copies)) if path in self._originals else own.events)
                if event is not None
            ]
            done = project(connection, events, layout_by)
            names = {run for own in told.values() for run in own.runs}
            ids = {name: run_id for name in names if (run_id := reads.run_id(connection, name)) is not None}
            by_path = {path: [ids[run] for run in sorted(own.runs) if run in ids] for path, own in told.items()}
            # Lines that were left out are read again: another journal may have their launch.
            for path, (place, contents) in opened.items():
                own = told[path]
                is_known = own.named <= done.launches and not own.has_foreign and not own.others
                is_used = place.used == place.before.end and is_known
                if place.summary is None:
                    end = contents.end if is_used else place.used
                    ends[path] = ReadTo(end, place.before.by_summary, path in self._originals)
                elif is_used:
                    ends.update({each: ReadTo(size, by_summary=True) for each, size in place.covers.items()})
                    by_path.update(dict.fromkeys(place.covers, by_path[path]))
            journals.set_read_to(connection, ends, by_path)
            return done

        done = self._database.in_write(work)
        new += done.new
        unreadable = tuple(skipped)
        newer = [path for path, contents in read.items() if contents.newer]
        skipped += [
            Skipped(path, "it has entries of a newer ckptstore: update ckptstore here to read them") for path in newer
        ]
        left_out = tuple(event.file for event in done.left_out if isinstance(event, FileRecorded))
        skipped += [
            Skipped(path, f"no journal here tells of launch {launch}, whose files are left out until one does")
            for launch, path in {file.launch: file.path for file in left_out}.items()
        ]
        failed += [
            Skipped(path, "it has lines of a launch, and no journal here tells when that launch began")
            for path, own in told.items()
            if own.named - done.launches and not own.has_foreign
        ]
        spoiled = sum(contents.spoiled for contents in read.values()) + sum(own.unusable for own in told.values())
        left = [
            _Place(path, ends[path]._replace(end=contents.end), ends[path].end, others=told[path].others)
            for path, contents in read.items()
            if contents.has_more
        ]
        synced = Synced(
            read=len(read),
            records=done.records,
            spoiled=spoiled,
            runs=tuple(sorted({run for own in told.values() for run in own.runs})),
            skipped=tuple(skipped),
            unreadable=unreadable,
            failed=tuple(failed),
            left_out=left_out,
            refused=tuple(Skipped(path, reason) for path, own in told.items() for reason in own.refused),
        )
        return synced, left

    def _opened(
        self, places: Iterable[_Place], skipped: list[Skipped], failed: list[Skipped]
    ) -> dict[str, tuple[_Place, Contents]]:
        """The pieces of the trusted journals; reasons against others go into `skipped`, read errors into `failed`."""
        opened: dict[str, tuple[_Place, Contents]] = {}
        for place in places:
            self._database.let_go_if_idle()
            path, before = place.path, place.before
            try:
                if reason := why_not(*jsonl.owners(path), self._trust):
                    skipped.append(Skipped(path, reason))
                    continue
                found = place.summary or jsonl.read(path, before.end, _BYTES)
            except OSError as error:
                failed.append(Skipped(path, reason_of(error)))
                continue
            if reason := why_not(found.owner, found.home_owner, self._trust):  # another file may be there by now
                skipped.append(Skipped(path, reason))
                continue
            opened[path] = place, found
        return opened


def _mark_gone(database: Database, ids: Sequence[str]) -> None:
    """Record which of the files that were just projected no longer exist.

    MindSpore and users delete files without an event. A rebuild of the catalog gives the same rows.
    """
    with database.read() as connection:
        found = [file for file in reads.files_by_id(connection, ids).values() if file.state is FileState.COMPLETE]
    names = cache(_names_in)
    unseen = [file for file in found if not is_in(names(file.path.rpartition("/")[0]), file.path.rpartition("/")[2])]
    gone = presence.gone(unseen, presence.unidentified((file.path, file.directory_id) for file in found))
    if gone:
        events = [FileRecorded(file.amended(state=FileState.MISSING)) for file in gone]
        database.in_write(lambda connection: project(connection, events))


def _names_in(directory: str) -> AbstractSet[str]:
    with suppress(OSError):
        return names_in(directory)
    return frozenset()


def _added(one: Synced, other: Synced) -> Synced:
    added = Synced(**{name: value + getattr(other, name) for name, value in vars(one).items()})
    return replace(added, runs=tuple(sorted(set(added.runs))))


def unread_journals(synced: Synced) -> tuple[Skipped, ...]:
    """The skipped journals, or folders of them: some or all of their events are unknown."""
    return tuple(each for each in synced.skipped if _directory_told(each.path))


def why_unheard(synced: Synced) -> str:
    """Why events of a run may be unknown, such as a pin; empty if every journal was read."""
    first = next(iter(unread_journals(synced)), None)
    return "" if first is None else f"{first.path}, which may have pins or tags, was not read in full: {first.reason}"


def unheard_states(synced: Synced, files: Iterable[Checkpoint]) -> dict[tuple[str, int], tuple[Skipped, ...]]:
    """The states, by launch and step, with a file below a directory that was unmounted when its journals were read.

    Each is given with all such directories: pins and tags of a state are journalled beside one of its files.
    """
    found: dict[tuple[str, int], set[str]] = {}
    for file in files if synced.away else ():
        directory = nearest(file.path, synced.away)
        if directory and not file.state.is_gone:
            found.setdefault((file.launch, file.global_step), set()).add(directory)
    return {key: tuple(Skipped(each, _AWAY) for each in sorted(some)) for key, some in found.items()}


def beside_unread(synced: Synced, paths: Iterable[str]) -> dict[str, str]:
    """The paths that an unread journal may describe, and why they are not adopted.

    It is the journal of their directory, or may be below a directory that could not be listed.
    """
    homes = {_directory_told(each.path): each for each in unread_journals(synced)}
    unlisted = {each.path: each for each in synced.unreadable if not _directory_told(each.path)}
    if not (homes or unlisted):
        return {}
    reasons = {}
    for path in paths:
        journal = homes.get(path.rpartition("/")[0] or "/") or homes.get(above_save(path))
        journal = journal or unlisted.get(nearest(path, unlisted))
        if journal is not None:
            reasons[path] = f"{journal.path}, which may tell of it, was not read in full: {journal.reason}"
    return reasons


def _directory_told(path: str) -> str:
    """The directory whose files a journal, or a folder of journals, describes; empty for another path."""
    if Path(path).name == FOLDER:
        return str(Path(path).parent)
    return jsonl.directory_of(path) if Path(path).parent.name == FOLDER else ""


def write_missed(database: Database, ids: Iterable[str]) -> set[str]:
    """Append lines that journals could not take, by their ids, if this user may write there; return those left.

    The catalog keeps them until then. Raises `CatalogUnavailableError`.
    """
    with database.read() as connection:
        lacking = journals.unwritten_lines(connection, None, ids)
    return _append(database, lacking, {})


def _append(database: Database, lacking: Iterable[Unwritten], seen: Mapping[str, AbstractSet[str]]) -> set[str]:
    """As `write_missed`, for these lines; also at the paths, by identity, where their directories were seen since.

    If the process dies in between, some are written twice: that does no harm.
    """
    left: set[str] = set()
    of_homes = grouped(((each.directory, tuple(each.home["identities"])), each) for each in lacking)
    for (directory, identities), own in of_homes.items():
        home = Home(set(identities), {place for each in own for place in each.home["places"]})
        since = {path for each in identities for path in seen.get(each, ())} - {directory}
        ids = [each.id for each in own]
        if any(_is_appended(place, home, own) for place in (directory, *sorted(since))):
            database.in_write(partial(journals.set_written, ids=ids))
        else:
            left.update(ids)
    return left


def _is_appended(directory: str, home: Home, lacking: Iterable[Unwritten]) -> bool:
    """Whether the journal of a directory could be written. If not, the next process that records there warns.

    Only the directory's owner and root write to it: a line counts by its author. A directory without a record counts as
    the right one if it has journals.
    """
    known = home if any(home) else Home(set(), {FOLDER})
    writer = JournalWriter(directory, SHARED, token_hex(6), lambda: presence.enter(directory, known)[0])
    try:
        if os.geteuid() not in (os.lstat(directory).st_uid, 0):
            return False
        writer.append([dict(each.line) for each in lacking])
    except OSError:
        if writer.path and jsonl.size(writer.path) == 0:  # a full disk still takes empty files, one at each try
            with suppress(OSError):
                Path(writer.path).unlink()
        return False
    return True
