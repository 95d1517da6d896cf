"""Records events: appends them to the journals beside the files, syncs those, then projects them into the catalog.

An event in a journal survives the loss of the catalog: `sync`, `resolve` and `scan` read it. A rank writes journals of
its own (`for_rank`), a process that writes for any ranks shared ones (`shared`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from ckptstore.catalog import journals, reads, schema
from ckptstore.catalog.project import project
from ckptstore.core.events import (
    CopyRecorded,
    FileRecorded,
    FilesRemoved,
    FileUnplaced,
    GcEnded,
    LaunchStarted,
    RunForgotten,
    RunRenamed,
    SourceAdded,
    TierDeclared,
    launch_of,
    run_of,
    to_line,
)
from ckptstore.core.model import FileState
from ckptstore.disk import presence
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import Home
from ckptstore.errors import CatalogUnavailableError, reason_of
from ckptstore.journal.accept import takes_protection
from ckptstore.journal.jsonl import SHARED, JournalWriter, directory_of, nearest
from ckptstore.journal.layouts import layout_by
from ckptstore.journal.sync import take_up_own, write_missed
from ckptstore.outside import Path, os, socket, threading, utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.removals import Item
    from ckptstore.core.events import Event, Line, LoadOutcome
    from ckptstore.core.model import Checkpoint, Launch, LaunchKey, Rule
    from ckptstore.journal.jsonl import Span

log = logging.getLogger("ckptstore")

_CATALOG = "the catalog"


class Recorder:
    """Writes the events of one process to journals and to the catalog.

    - `stem` names its segments: `rank_{R}` for a rank, `shared` for a process that writes for several ranks.
    - `facts_of` returns the facts of a launch. Each segment has them before the first event of the launch.
    - `behind`: the catalog was unusable and lacks events of the journals. `postponed`: the catalog gets many events at
      once instead of one by one. In both cases events go into the journals only, until `catch_up` has run.
    - `recorded` are the records of directories that exist already.
    """

    def __init__(
        self,
        database: Database,
        stem: str,
        writer: str,
        facts_of: Callable[[LaunchKey], LaunchStarted | None],
        recorded: Mapping[str, Home] = MappingProxyType({}),
    ) -> None:
        self.database = database
        self.behind = False
        self.postponed = False
        self._stem = stem
        self._writer = writer
        self._facts_of = facts_of
        self.begun: dict[str, JournalWriter] = {}  # by this process, for another recorder too: it goes on with them
        self._writers: dict[str, JournalWriter] = {}
        self._homes: dict[str, Home] = {}
        self._recorded = recorded
        self._announced: dict[str, list[SourceAdded]] = {}
        self._owes: dict[str, str] = {}  # the ids of lines that journals lack, and their directories
        self._complained: set[str] = set()
        self._leaving = threading.Lock()
        self._left = 0

    def record(self, events: Sequence[Event]) -> None:
        """Record events: each in the journal of its directory, events without a directory in the first journal.

        The catalog keeps events that no journal accepted, until one does. Raises `CatalogUnavailableError` if neither
        accepted them.
        """
        by_home = self._by_home(events)
        written = self._append(by_home, self._facts_of)
        is_journalled = bool(by_home) and not written.missed
        if is_journalled and self._is_for_later():
            return
        # A power failure may take events from the catalog if the journals have them. It must not take the first ones
        # of a segment: a segment that the catalog does not know is not read.
        is_kept = is_journalled and all(span.begin for span in written.spans)
        try:
            self._give_to_catalog(written, events, is_kept=is_kept)
        except CatalogUnavailableError as error:
            if not is_journalled:
                raise
            self.fall_behind(error)

    def record_decided(self, decide: Callable[[Connection], tuple[Sequence[Event], Iterable[LaunchKey]]]) -> None:
        """Record the events that `decide` returns from its reading of the catalog, in the same transaction.

        `decide` returns the launches of the events, too. The events are in the journals before the transaction ends. An
        error that `decide` raises is passed on, and nothing is recorded. If the catalog fails after that, the error
        that is raised says whether it takes them up later.
        """
        journalled: list[Span] = []
        is_taken = True

        def work(connection: Connection) -> list[str]:
            events, launches = decide(connection)
            if not events:
                return []
            found = {launch: reads.launch(connection, launch) for launch in launches}
            started = {key: LaunchStarted(launch.undecided()) for key, launch in found.items() if launch is not None}
            written = self._append(self._by_home(events), started.get, started)
            journalled.extend(written.spans)
            nonlocal is_taken
            is_taken = not any(map(takes_protection, events))
            return self._project(connection, written, events)

        try:
            lagging = self.database.in_write(work)
        except CatalogUnavailableError as error:
            if not journalled:
                raise
            later = "and reaches the catalog later" if is_taken else "but make it again once the catalog can be used"
            raise type(error)(f"{error.message}; the change is in the journals, {later}", error.hint) from error
        take_up_own(self.database, lagging)

    def record_files(self, files: Sequence[Checkpoint], outcome: LoadOutcome | None = None) -> list[Checkpoint]:
        """Record files, and with them the outcome of the restore plan of the launch that wrote them.

        Returns the records, with the time of recording and the identities of the directories.
        """
        now = utc_now()
        ids = self._identities([file for file in files if not file.directory_id])
        stamped = [
            replace(file, created_at=file.created_at or now, directory_id=file.directory_id or ids[file.path])
            for file in files
        ]
        self.record([*map(FileRecorded, stamped), *([] if outcome is None else [outcome])])
        return stamped

    def mark(self, files: Sequence[Checkpoint], state: FileState, problem: Rule | None = None) -> None:
        """Record new states of these files."""
        self.record([FileRecorded(file.amended(state=state, problem=problem)) for file in files])

    def amend(self, changes: Sequence[tuple[Checkpoint, Checkpoint]]) -> list[bool]:
        """Record how files look on the disk now: pairs of the old and the new record; return whether each was taken.

        A file whose record has changed since is skipped. Raises `CatalogUnavailableError`.
        """
        stood: set[str] = set()

        def decide(connection: Connection) -> tuple[list[FileRecorded], set[LaunchKey]]:
            known = reads.files_by_id(connection, [before.id for before, _ in changes])
            unchanged = [(before, after) for before, after in changes if known.get(before.id) == before]
            stood.clear()  # the transaction may be tried again
            stood.update(before.id for before, _ in unchanged)
            amended = [replace(after, revision=before.amended().revision) for before, after in unchanged]
            is_back = {before.id for before, _ in unchanged if before.state in (FileState.MISSING, FileState.TRASHED)}
            back = [file for file in amended if file.id in is_back and file.state is FileState.COMPLETE]
            others, seen = _back_at_their_paths(connection, back)
            events = [*others, *(seen.get(file.id, file) for file in amended)]
            return list(map(FileRecorded, events)), {file.launch_key for file in events}

        self.record_decided(decide)
        return [before.id in stood for before, _ in changes]

    def adopt(self, files: Sequence[Checkpoint]) -> None:
        """Record files that were found on the disk: these records count for more than older ones."""
        ids = self._identities(files)
        here = [replace(file, directory_id=ids[file.path]) for file in files]
        with self.database.read() as connection:
            known = reads.files_by_id(connection, [file.id for file in here])
            others, seen = _back_at_their_paths(
                connection, [_seen_after(known[file.id], file) if file.id in known else file for file in here]
            )
        self.record_files([*others, *seen.values()])

    def announce(self, event: SourceAdded) -> None:
        """Record the directory where a rank saves: its journal then covers that directory and all below it.

        A directory without an identity gets one. If the run saved to another directory at this path before, the disk
        may be unmounted: a warning is logged, and training goes on.
        """
        source = event.source
        directory = source.directory
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._complain(directory, error)
        before: set[str] = set()
        with suppress(CatalogUnavailableError):
            if not self.is_late:
                with self.database.read() as connection:
                    before = reads.announced(connection, source.run, directory)
        identity = presence.identify(directory, Home(before, {"."}))
        if identity and before and identity not in before:
            self._say(
                directory,
                f"{directory} is not the directory that run {source.run} saved to before: perhaps its disk is not "
                "mounted. Its files do not count as deleted; if they are gone for good, scan the directory",
            )
        self.home(directory, Home({identity} - {""}, set()))
        told = event.with_identity(identity)
        self.record([told])
        # Another directory may take its place, such as an empty mount point. The journal there then tells which one is
        # missing.
        self._writers[directory].first.append(to_line(told, directory))
        self._announced.setdefault(directory, []).append(told)

    def tell(self, launch: LaunchKey, files: Iterable[Checkpoint] = ()) -> None:
        """Record the present facts of a launch: in the journals of its records, beside `files`, and in the catalog."""
        for file in files:
            self.home_beside(file)
        written = self._append({directory: [] for directory in self._writers}, self._facts_of, [launch])
        facts = None if self._writers or self.behind else self._facts_of(launch)
        if facts is None and not written.missed and (not written.spans or self._is_for_later()):
            return
        try:
            self._give_to_catalog(written, [facts] if facts else [])
        except CatalogUnavailableError as error:
            self.fall_behind(error)

    def note(self, file: Checkpoint) -> bool:
        """Journal, without waiting, that a file is being recorded; return whether that was possible.

        The entry has no size: a start reports a file as lost only if it was complete.
        """
        begun = replace(file, created_at=utc_now(), state=FileState.IN_PROGRESS, size=None, digest=None, mtime_ns=None)
        directory = self._home_of(file.path)
        writer = self._writers.get(directory)
        try:
            return writer is not None and writer.append_at_once([to_line(FileRecorded(begun), directory)])
        except OSError as error:
            self._complain(directory, error)
            return False

    def write_missed(self, directories: Collection[str] | None = None) -> None:
        """Write the lines that journals could not take from this rank; `directories`: only those of their journals.

        Raises `CatalogUnavailableError`.
        """
        owed = {each for each, of in list(self._owes.items()) if directories is None or of in directories}
        if owed and not self.behind:
            for each in owed - write_missed(self.database, owed):
                self._owes.pop(each, None)

    def catch_up(self) -> None:
        """Project the events that only the journals have into the catalog. Raises `CatalogUnavailableError`."""
        while True:
            seen = self._left
            paths = [writer.path for writer in self._writers.values() if writer.path]
            try:
                with self.database.connected():
                    if self.behind:
                        schema.ensure(self.database)
                    take_up_own(self.database, paths)
            except CatalogUnavailableError as error:
                self.fall_behind(error)
                raise
            with self._leaving:
                if self._left == seen:  # else another thread has added events after the journals were read
                    self.behind = self.postponed = False
                    self._complained.discard(_CATALOG)
                    return

    @property
    def is_late(self) -> bool:
        """Whether the catalog lacks events of the journals."""
        return self.behind or self.postponed

    def inherit(self, other: Recorder) -> None:
        """Take over the state of the catalog, and the warnings logged, from a recorder that wrote nothing yet."""
        self.behind = other.behind
        self._complained |= other._complained

    def fall_behind(self, error: CatalogUnavailableError) -> None:
        """Write events into the journals only, until `catch_up` has run: the catalog cannot be used."""
        self.behind = True
        self.complain(f"{error}. Records are in the journals, and reach the catalog later.")

    def complain(self, message: str) -> None:
        """Log the error of the catalog, once until it can be used again."""
        self._say(_CATALOG, message)

    def home(self, directory: str, recorded: Home | None = None) -> None:
        """Open a journal in a directory: for events in and below it; the first one also has events without a directory.

        It is written only if the directory is present and matches its record.
        """
        if directory not in self._writers:
            known = self._recorded.get(directory, Home(set(), set()))
            self._homes[directory] = Home(set(known.identities), set(known.places))
            writer = self.begun.setdefault(directory, JournalWriter(directory, self._stem, self._writer))
            writer.reach = partial(self._reach, directory)
            self._writers[directory] = writer
        if recorded is not None:
            self._homes[directory].identities.update(recorded.identities)
            self._homes[directory].places.update(recorded.places)

    def home_beside(self, file: Checkpoint) -> None:
        """Open a journal in the directory of a recorded file."""
        self.home(presence.directory_of(file.path), presence.home_of(file))

    def _reach(self, directory: str) -> int:
        opened, identity = presence.enter(directory, self._homes[directory])
        self._homes[directory].identities.add(identity)
        return opened

    def _identities(self, files: Sequence[Checkpoint]) -> dict[str, str]:
        """The identities of the directories of present files, by path. A directory with a journal gets an identity."""
        directories = {file.path: presence.directory_of(file.path) for file in files}
        one_of = {directory: path for path, directory in directories.items()}
        of = {directory: self._identity(directory, path) for directory, path in one_of.items()}
        return {path: of[directory] for path, directory in directories.items()}

    def _identity(self, directory: str, path: str) -> str:
        if directory != self._home_of(path):
            return presence.identity_of(directory)
        recorded = self._homes.get(directory, Home(set(), set()))
        return presence.identify(directory, Home(recorded.identities, {presence.below(directory, path)}))

    def _by_home(self, events: Iterable[Event]) -> dict[str, list[Event]]:
        """The events by the directory whose journal gets them, without the events that no journal can get."""
        told: dict[str, list[Event]] = {}
        others: list[Event] = []
        everywhere: list[Event] = []
        for event in events:
            match event:
                case FileRecorded(file):
                    directory = self._home_of(file.path)
                    self._expect(directory, file)
                case CopyRecorded(file=file):
                    directory = self._home_of(file.path)
                case FileUnplaced(_, unplaced):
                    directory = self._home_of(unplaced.path)
                case SourceAdded(source):
                    directory = source.directory
                case FilesRemoved():
                    directory = event.directory
                case GcEnded() | RunRenamed() | RunForgotten() | TierDeclared():
                    everywhere.append(event)
                    continue
                case _:
                    others.append(event)
                    continue
            self.home(directory)
            told.setdefault(directory, []).append(event)
        first = next(iter(told or self._writers), None)
        if others and first is not None:
            told.setdefault(first, []).extend(others)
        for directory in list(told or self._writers) if everywhere else ():
            told.setdefault(directory, []).extend(everywhere)
        return told

    def _expect(self, directory: str, file: Checkpoint) -> None:
        """Note how to recognize a directory, before its journal gets a file's record: by identity, or by the file."""
        self.home(directory)
        recorded = self._homes[directory]
        if file.directory_id and directory == presence.directory_of(file.path):
            recorded.identities.add(file.directory_id)
        if not file.state.is_gone:
            recorded.places.clear()  # one is enough
            recorded.places.add(presence.below(directory, file.path))

    def _give_to_catalog(self, written: _Written, events: Sequence[Event], *, is_kept: bool = False) -> None:
        """Project new events, and earlier events that the catalog lacks. Raises `CatalogUnavailableError`."""
        lagging = self.database.in_write(lambda connection: self._project(connection, written, events), is_kept=is_kept)
        take_up_own(self.database, lagging)
        self.write_missed({directory_of(span.path) for span in written.spans})

    def _project(self, connection: Connection, written: _Written, events: Sequence[Event]) -> list[str]:
        """Project events, after their launches; return the segments of which the catalog lacks earlier events."""
        news = [*written.launches.values(), *written.sources, *events]
        project(connection, news, layout_by)
        for directory, lines in written.missed.items():
            home = self._homes[directory]
            told = {"identities": sorted(home.identities), "places": sorted(home.places)}
            self._owes |= dict.fromkeys(journals.add_unwritten(connection, directory, told, lines), directory)
        runs = {run_of(event) for event in news}
        return [span.path for span in written.spans if not journals.move_read_to(connection, runs, *span[:3])]

    def _append(
        self,
        by_home: Mapping[str, Sequence[Event]],
        facts_of: Callable[[LaunchKey], LaunchStarted | None],
        launches: Iterable[LaunchKey] = (),
    ) -> _Written:
        """Append events to the journals of these directories, after the facts of their launches that they lack."""
        written = _Written()
        for directory, events in by_home.items():
            named = dict.fromkeys([*launches, *(launch for event in events if (launch := launch_of(event)))])
            told = {launch: event for launch in named if (event := facts_of(launch)) is not None}
            lines = [to_line(event, directory) for event in events]
            try:
                span = self._writers[directory].append(lines, told)
            except OSError as error:
                self._complain(directory, error)
                written.missed[directory] = [*(to_line(event, directory) for event in told.values()), *lines]
                written.launches |= told
                continue
            if span.end > span.begin:
                written.spans.append(span)
                written.sources += self._announced.get(directory, ()) if span.begin == 0 else ()
                written.launches |= {launch: told[launch] for launch in span.launches}
        return written

    def _is_for_later(self) -> bool:
        """Whether new events are left to `catch_up`."""
        with self._leaving:
            self._left += self.is_late
            return self.is_late

    def _home_of(self, path: str) -> str:
        """The nearest announced directory above, else the one whose presence counts for the file."""
        return nearest(path, self._writers) or presence.directory_of(path)

    def _complain(self, directory: str, error: OSError) -> None:
        why = reason_of(error)
        self._say(
            directory,
            f"the journal in {directory} cannot be written ({why}): records go to the catalog alone until it can",
        )

    def _say(self, about: str, message: str) -> None:
        """Log a warning once."""
        if about not in self._complained:
            self._complained.add(about)
            log.warning("%s", message)


def for_rank(database: Database, rank: int, launch: Launch, facts: Callable[[], LaunchStarted]) -> Recorder:
    """The recorder of one rank of a launch; `facts` returns the present ones of the launch."""
    return Recorder(database, f"rank_{rank}", launch.key, lambda named: facts() if named == launch.key else None)


def shared(database: Database, recorded: Mapping[str, Home] = MappingProxyType({})) -> Recorder:
    """The recorder of a process that writes for any ranks: adopted files, pins.

    `recorded` are the records of the directories of a run, as `homes` returns them.
    """

    def facts_of(launch: LaunchKey) -> LaunchStarted | None:
        with database.read() as connection:
            found = reads.launch(connection, launch)
        return None if found is None else LaunchStarted(found.undecided())

    return Recorder(database, SHARED, f"{socket.gethostname()}:{os.getpid()}", facts_of, recorded)


def homes(connection: Connection, run: int) -> dict[str, Home]:
    """The records of the directories of a run, and of those whose journals cover directories below."""
    found: dict[str, Home] = {}
    journalled = {directory_of(path) for path in journals.journals_of(connection, run)}
    for source in reads.announced_by(connection, run):
        found.setdefault(source.directory, Home(set(), set())).identities.update({source.directory_id} - {""})
    for path, identity in reads.recorded_paths(connection, run, with_gone=False):
        directory = presence.directory_of(path)
        own = found.setdefault(directory, Home(set(), set()))
        if identity:
            own.identities.add(identity)
            continue
        own.places.add(presence.below(directory, path))
        if above := nearest(path, journalled):
            found.setdefault(above, Home(set(), set())).places.add(presence.below(above, path))
    return found


def homes_of_trash(connection: Connection, items: Iterable[Item]) -> dict[tuple[str, str], Home]:
    """The records of the directories that have these files in the trash, by directory and gc.

    A tree may have been moved since another catalog's gc. Then only the record at the file's present path is known.
    """
    some = list(items)
    files = reads.files_by_id(connection, [item.checkpoint for item in some if item.checkpoint])
    moved = [item.path for item in some if item.checkpoint and item.checkpoint not in files]
    at_paths = reads.files_at_paths(connection, moved)
    found: dict[tuple[str, str], Home] = {}
    for item in some:
        home = found.setdefault((item.root, item.collection), Home(set(), set()))
        own = files.get(item.checkpoint)
        here = [own] if own else [file for file in at_paths.get(item.path, ()) if file.run == item.run]
        home.identities.update({file.directory_id for file in here} - {""})
        home.places.add(f"{FOLDER}/trash/{item.collection}/{item.place}")
    return found


def tell_everywhere(recorder: Recorder, connection: Connection, run: int) -> None:
    """Open journals in every present directory of a run: another catalog may read only one of them.

    Files that a scan adopted are journalled in the directory that was scanned.
    """
    journalled = {directory_of(path) for path in journals.journals_of(connection, run)}
    found = homes(connection, run)
    told = {each if found[each].identities else nearest(f"{each}/.", journalled) or each for each in found}
    for directory in sorted(told):
        recorded = found.get(directory, Home(set(), set()))
        if not presence.absence(directory, recorded):
            recorder.home(directory, recorded)


def record_of_run(
    database: Database, decide: Callable[[Connection], tuple[Sequence[Event], Sequence[Checkpoint]]]
) -> bool:
    """Record the events that `decide` returns, from its reading of the catalog, about a run; False if there are none.

    `decide` also returns files of the run. The events are journalled beside one of them, where a rebuilt catalog finds
    them. For a run without files, only the catalog has the events.
    """
    recorder = shared(database)
    said: list[Event] = []

    def work(connection: Connection) -> tuple[Sequence[Event], list[LaunchKey]]:
        events, files = decide(connection)
        said[:] = events
        if not events or not files:
            return events, []
        file = _file_to_tell(files)
        recorder.home_beside(file)
        return events, [file.launch_key]

    recorder.record_decided(work)
    return bool(said)


def _file_to_tell(files: Iterable[Checkpoint]) -> Checkpoint:
    """The file beside which to journal: the first one whose directory is present and can be written to.

    Files that still count come first. The catalog may still have the files of a lost disk or of a moved tree, and also
    the files of a backup that was scanned.
    """
    of_directories: dict[str, Checkpoint] = {}
    for file in sorted(files, key=lambda each: (each.state.is_gone, each.path)):
        of_directories.setdefault(presence.directory_of(file.path), file)
    for directory, file in of_directories.items():
        folder = f"{directory}/{FOLDER}"
        is_there = not presence.absence(directory, presence.home_of(file))
        if is_there and os.access(folder if os.path.isdir(folder) else directory, os.W_OK):
            return file
    return next(iter(of_directories.values()))


@dataclass
class _Written:
    """The result of writing to journals: places, the launches and sources written first, and the lines that failed."""

    spans: list[Span] = field(default_factory=list)
    launches: dict[LaunchKey, LaunchStarted] = field(default_factory=dict)
    sources: list[SourceAdded] = field(default_factory=list)
    missed: dict[str, list[Line]] = field(default_factory=dict)


def _seen_after(known: Checkpoint, file: Checkpoint) -> Checkpoint:
    """The record of a file that was seen on the disk: newer than the known record, unless the file is unchanged."""
    if (known.state, known.mtime_ns, known.directory_id) == (FileState.COMPLETE, file.mtime_ns, file.directory_id):
        return file
    return replace(file, revision=max(file.newness, known.newness + 1))


def _back_at_their_paths(
    connection: Connection, files: Sequence[Checkpoint]
) -> tuple[list[Checkpoint], dict[str, Checkpoint]]:
    """The later records at the paths of these files, marked as gone; and these files by id, with newer versions.

    A later file takes over the path of an earlier one, unless it is gone and the earlier one was seen there after that.
    """
    recorded = reads.files_at_paths(connection, [file.path for file in files])
    gone: list[Checkpoint] = []
    seen: dict[str, Checkpoint] = {}
    for file in files:
        later = [each for each in recorded.get(file.path, ()) if _is_gone_for(each, file)]
        own = [each.amended(state=FileState.MISSING, problem=None) for each in later]
        newest = max((each.newness for each in own), default=file.newness - 1)
        seen[file.id] = file if newest < file.newness else replace(file, revision=newest + 1)
        gone += own
    return gone, seen


def _is_gone_for(other: Checkpoint, file: Checkpoint) -> bool:
    """Whether a file of the run, recorded later at the path of a present file, is gone or was never written."""
    if other.run != file.run or other.created_at is None or file.created_at is None:
        return False
    if (other.created_at, other.id) <= (file.created_at, file.id):
        return False
    has_other_bytes = other.size != file.size or other.digest not in (None, file.digest or other.digest)
    return other.state in (FileState.MISSING, FileState.IN_PROGRESS) or (
        has_other_bytes and other.state in (FileState.COMPLETE, FileState.DAMAGED)
    )
