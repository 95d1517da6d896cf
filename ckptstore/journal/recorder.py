"""Records events: appends them to the journals beside the files, syncs those, then projects them into the catalog.

An event that is in a journal is kept, whatever becomes of the catalog: `sync`, `resolve` and `scan` take it up.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from ckptstore.catalog import journals, reads, schema
from ckptstore.catalog.project import project
from ckptstore.core.events import (
    FileRecorded,
    FilesRemoved,
    FileUnplaced,
    GcEnded,
    LaunchStarted,
    LayoutFileKept,
    RunForgotten,
    RunRenamed,
    SourceAdded,
    has_content,
    launch_of,
    runs_of,
    to_line,
)
from ckptstore.core.model import FileState
from ckptstore.disk import presence
from ckptstore.disk.presence import Home
from ckptstore.errors import CatalogUnavailableError
from ckptstore.journal.jsonl import JournalWriter, directory_of
from ckptstore.journal.layouts import layout_by
from ckptstore.journal.sync import take_up
from ckptstore.outside import Path, threading, utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.events import Event, LoadOutcome
    from ckptstore.core.model import Checkpoint, LaunchKey, Rule
    from ckptstore.journal.jsonl import Span

log = logging.getLogger("ckptstore")

_CATALOG = "the catalog"


class Recorder:
    """The journals that one process writes, and the catalog.

    `stem` names its journals: `rank_{R}` for a rank, `shared` for who speaks for others. `started` tells what is known
    of a launch: a journal has that before the first event of the launch. `behind` tells that the catalog could not be
    used and lacks what the journals have, `postponed` that it gets many events at once instead of one by one: until
    `catch_up` has done its work, events go into the journals only. `recorded` is what is known of directories before.
    """

    def __init__(
        self,
        database: Database,
        stem: str,
        writer: str,
        started: Callable[[LaunchKey], LaunchStarted | None],
        recorded: Mapping[str, Home] = MappingProxyType({}),
    ) -> None:
        self.database = database
        self.behind = False
        self.postponed = False
        self._stem = stem
        self._writer = writer
        self._started = started
        self._writers: dict[str, JournalWriter] = {}
        self._homes: dict[str, Home] = {}
        self._recorded = recorded
        self._told: dict[str, dict[LaunchKey, LaunchStarted]] = {}
        self._news: list[LaunchStarted] = []
        self._complained: set[str] = set()
        self._leaving = threading.Lock()
        self._left = 0

    def record(self, events: Sequence[Event]) -> None:
        """Keep events: each in the journal of its directory, one of no directory in the first that was begun.

        Raises `CatalogUnavailableError` where neither journal nor catalog took them.
        """
        told = self._by_home(events)
        spans = self._append(told, ())
        is_journalled = bool(spans) and len(spans) == len(told)
        if is_journalled and self._is_for_later():
            return
        news = self._take_news()

        def work(connection: Connection) -> list[str]:
            return self._project(connection, [*news, *events], spans)

        # A power failure may take from the catalog what the journals have, but for the first of each journal: one
        # that the catalog does not know is not read.
        is_kept = is_journalled and all(span.begin for span in spans) and all(map(_is_whole, events))
        try:
            gaps = self.database.in_write(work, is_kept=is_kept)
            if gaps:
                take_up(self.database, gaps)
        except CatalogUnavailableError as error:
            if not is_journalled:
                raise
            self.fall_behind(error)

    def decide(self, decide: Callable[[Connection], tuple[Sequence[Event], Iterable[LaunchKey]]]) -> None:
        """Keep the events that a look at the catalog decides on, in the transaction of that look.

        `decide` tells of which launches they are, too. They are in the journals before the transaction ends. Raises
        what `decide` raises: then nothing is kept.
        """

        def work(connection: Connection) -> list[str]:
            events, launches = decide(connection)
            if not events:
                return []
            found = {launch: reads.launch(connection, launch) for launch in launches}
            started = {key: LaunchStarted(launch.undecided()) for key, launch in found.items() if launch is not None}
            spans = self._append(self._by_home(events), started, started.get)
            return self._project(connection, [*self._take_news(), *events], spans)

        gaps = self.database.in_write(work)
        if gaps:
            take_up(self.database, gaps)

    def record_files(self, files: Sequence[Checkpoint], outcome: LoadOutcome | None = None) -> list[Checkpoint]:
        """Keep records of files, and with them what came of the plan of the launch that wrote them.

        Returns the records, with the moment and the identities of the directories.
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
        """Keep what became of these files."""
        self.record([FileRecorded(file.amended(state=state, problem=problem)) for file in files])

    def amend(self, changes: Sequence[tuple[Checkpoint, Checkpoint]]) -> list[bool]:
        """Keep what a look at the disk showed of files, each as it was recorded and as it is; whether each was taken.

        One whose record changed meanwhile is not. Raises `CatalogUnavailableError` where the catalog cannot be used.
        """
        stood: set[str] = set()

        def decide(connection: Connection) -> tuple[list[FileRecorded], set[LaunchKey]]:
            known = reads.files_by_id(connection, [before.id for before, _ in changes])
            unchanged = [(before, after) for before, after in changes if known.get(before.id) == before]
            stood.clear()  # it may be tried again
            stood.update(before.id for before, _ in unchanged)
            events = [FileRecorded(replace(after, revision=before.amended().revision)) for before, after in unchanged]
            return events, {before.launch_key for before, _ in unchanged}

        self.decide(decide)
        return [before.id in stood for before, _ in changes]

    def adopt(self, files: Sequence[Checkpoint]) -> None:
        """Keep records of files that were found on the disk: they count for more than what was known before."""
        with self.database.read() as connection:
            known = reads.files_by_id(connection, [file.id for file in files])
        ids = self._identities(files)
        seen = [replace(file, directory_id=ids[file.path]) for file in files]
        self.record_files([_seen_after(known[file.id], file) if file.id in known else file for file in seen])

    def announce(self, event: SourceAdded) -> None:
        """Keep where a rank saves: from now on the journal of that directory has what is in and below it.

        A directory without an identity gets one. If the run saved to another directory at this path before, its disk
        may not be mounted: that is logged, and training goes on.
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
                f"{directory} is not the directory that run {source.run} saved to before: its disk may not be mounted. "
                "What was saved there is not taken for deleted; if it is gone for good, scan the directory",
            )
        self.home(directory, Home({identity} - {""}, set()))
        self.record([event.with_identity(identity)])

    def tell(self, launch: LaunchKey, files: Iterable[Checkpoint] = ()) -> None:
        """Keep what is known of a launch now: in the journals of its records, beside `files`, and in the catalog."""
        for file in files:
            self.home_beside(file)
        started = self._started(launch)
        if self._writers:
            spans = self._append({directory: [] for directory in self._writers}, [launch])
            if not spans or self._is_for_later():
                return
        elif self.behind or started is None:
            return
        else:
            spans = []
        news = self._take_news() if self._writers else [started] if started else []
        try:
            gaps = self.database.in_write(lambda connection: self._project(connection, news, spans))
            if gaps:
                take_up(self.database, gaps)
        except CatalogUnavailableError as error:
            self.fall_behind(error)

    def note(self, file: Checkpoint) -> bool:
        """Journal that a file is being recorded, waiting for nobody and nothing; whether that could be done."""
        begun = replace(file, created_at=utc_now(), state=FileState.IN_PROGRESS, mtime_ns=None)
        directory = self._home_of(file.path)
        writer = self._writers.get(directory)
        if writer is None or not self._told.get(directory):
            return False
        try:
            return writer.append_at_once([to_line(FileRecorded(begun), directory)])
        except OSError as error:
            self._complain(directory, error)
            return False

    def catch_up(self) -> None:
        """Take what the journals have and the catalog lacks into it. Raises `CatalogUnavailableError`."""
        while True:
            seen = self._left
            paths = [writer.path for writer in self._writers.values() if writer.path]
            try:
                with self.database.connected():
                    if self.behind:
                        schema.ensure(self.database)
                    take_up(self.database, paths)
            except CatalogUnavailableError as error:
                self.fall_behind(error)
                raise
            with self._leaving:
                if self._left == seen:  # else another thread has left something after the journals were read
                    self.behind = self.postponed = False
                    self._complained.discard(_CATALOG)
                    return

    @property
    def is_late(self) -> bool:
        """Whether the catalog lacks what the journals have."""
        return self.behind or self.postponed

    def inherit(self, other: Recorder) -> None:
        """What another one, which wrote nothing yet, has found out about the catalog, and has said."""
        self.behind = other.behind
        self._complained |= other._complained

    def fall_behind(self, error: CatalogUnavailableError) -> None:
        """The catalog cannot be used: until `catch_up` has done its work, events go into the journals only."""
        self.behind = True
        self.complain(f"{error}. Records are in the journals, and reach the catalog later.")

    def complain(self, message: str) -> None:
        """Say what is wrong with the catalog, once, until it can be used again."""
        self._say(_CATALOG, message)

    def home(self, directory: str, recorded: Home | None = None) -> None:
        """Have a journal in a directory: for what is in and below it, and, of the first, for what has no directory.

        It is written if the directory is present, by what is recorded of it.
        """
        if directory not in self._writers:
            known = self._recorded.get(directory, Home(set(), set()))
            self._homes[directory] = Home(set(known.identities), set(known.places))
            reach = partial(self._reach, directory)
            self._writers[directory] = JournalWriter(directory, self._stem, self._writer, reach)
            self._told[directory] = {}
        if recorded is not None:
            self._homes[directory].identities.update(recorded.identities)
            self._homes[directory].places.update(recorded.places)

    def home_beside(self, file: Checkpoint) -> None:
        """Have a journal in the directory of a recorded file."""
        self.home(presence.directory_of(file.path), presence.home_of(file))

    def _reach(self, directory: str) -> int:
        opened, identity = presence.enter(directory, self._homes[directory])
        self._homes[directory].identities.add(identity)
        return opened

    def _identities(self, files: Sequence[Checkpoint]) -> dict[str, str]:
        """The identities of the directories of files that are there, by path; one that gets a journal gets one too."""
        directories = {file.path: presence.directory_of(file.path) for file in files}
        one_of = {directory: path for path, directory in directories.items()}
        of = {directory: self._identity(directory, path) for directory, path in one_of.items()}
        return {path: of[directory] for path, directory in directories.items()}

    def _identity(self, directory: str, path: str) -> str:
        if directory != self._home_of(path):
            return presence.identity_of(directory)
        recorded = self._homes.get(directory, Home(set(), set()))
        if len(recorded.identities) == 1 and self._writers[directory].is_there():
            return next(iter(recorded.identities))  # what is opened is at its path
        return presence.identify(directory, Home(recorded.identities, {presence.below(directory, path)}))

    def close(self) -> None:
        """Let go of the journals; who writes to one takes it up again."""
        for writer in self._writers.values():
            writer.close()

    def _by_home(self, events: Iterable[Event]) -> dict[str, list[Event]]:
        """The events by the directory whose journal gets them; those that none can get are left out."""
        told: dict[str, list[Event]] = {}
        others: list[Event] = []
        everywhere: list[Event] = []
        for event in events:
            match event:
                case FileRecorded(file):
                    directory = self._home_of(file.path)
                    self._expect(directory, file)
                case FileUnplaced(_, unplaced):
                    directory = self._home_of(unplaced.path)
                case SourceAdded(source):
                    directory = source.directory
                case FilesRemoved():
                    directory = event.directory
                case GcEnded() | RunRenamed() | RunForgotten():
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
        """The journal of a file's record goes to its directory, or to one in which the file is."""
        self.home(directory)
        recorded = self._homes[directory]
        if file.directory_id and directory == presence.directory_of(file.path):
            recorded.identities.add(file.directory_id)
        if file.state not in (FileState.MISSING, FileState.MOVED):
            recorded.places.clear()  # one is enough
            recorded.places.add(presence.below(directory, file.path))

    def _project(self, connection: Connection, events: Sequence[Event], spans: Sequence[Span]) -> list[str]:
        """Put events into the catalog; the journals of which it lacks what is before them."""
        project(connection, events, layout_by)
        return [span.path for span in spans if not self._went_on(connection, span, events)]

    def _went_on(self, connection: Connection, span: Span, events: Sequence[Event]) -> bool:
        told = [started.launch.run for started in self._told[directory_of(span.path)].values()]
        runs = {run for event in events for run in runs_of(event)} or set(told)
        to = journals.ReadTo(span.end, span.head)
        return len(runs) == 1 and journals.went_on(connection, runs.pop(), span.path, span.begin, to)

    def _append(
        self,
        told: Mapping[str, Sequence[Event]],
        launches: Iterable[LaunchKey],
        started: Callable[[LaunchKey], LaunchStarted | None] | None = None,
    ) -> list[Span]:
        """Append events to the journals of these directories, the launches that those do not know first."""
        spans = []
        for directory, events in told.items():
            named = dict.fromkeys([*launches, *(launch for event in events if (launch := launch_of(event)))])
            span = self._journal(directory, named, events, started or self._started)
            if span is not None:
                spans.append(span)
        return spans

    def _journal(
        self,
        directory: str,
        launches: Iterable[LaunchKey],
        events: Sequence[Event],
        started: Callable[[LaunchKey], LaunchStarted | None],
    ) -> Span | None:
        """Append to the journal of a directory; None where it cannot be, or there is nothing to tell."""
        writer = self._writers[directory]
        try:
            if not writer.is_as_left():
                self._told[directory] = {}
            known = self._told[directory]
            new = {
                launch: event
                for launch in launches
                if (event := started(launch)) is not None and known.get(launch) != event
            }
            text = [to_line(event, directory) for event in (*new.values(), *events)]
            if not text:
                return None
            span = writer.append(text)
        except OSError as error:
            self._complain(directory, error)
            return None
        known |= new
        self._news += new.values()
        return span

    def _take_news(self) -> list[LaunchStarted]:
        """What was journalled of launches since the last time: another rank may have decided it without the catalog."""
        news, self._news = self._news, []
        return news

    def _is_for_later(self) -> bool:
        """Whether what is journalled now is left to `catch_up`."""
        with self._leaving:
            self._left += self.is_late
            return self.is_late

    def _home_of(self, path: str) -> str:
        """The nearest directory above that something was announced for, else the file's own."""
        above = path
        while above := above.rpartition("/")[0]:
            if above in self._writers:
                return above
        return "/" if "/" in self._writers else str(Path(path).parent)

    def _complain(self, directory: str, error: OSError) -> None:
        why = error.strerror or str(error)
        self._say(directory, f"the journal in {directory} cannot be written ({why}): records go to the catalog alone")

    def _say(self, about: str, message: str) -> None:
        """Say it once."""
        if about not in self._complained:
            self._complained.add(about)
            log.warning("%s", message)


def _is_whole(event: Event) -> bool:
    """Whether a journal gets all of an event: a very large layout file is not in it."""
    return not isinstance(event, LayoutFileKept) or has_content(event)


def _seen_after(known: Checkpoint, file: Checkpoint) -> Checkpoint:
    """A file as a look at the disk shows it now, newer than its record; where that is of this very file, it stands."""
    if (known.state, known.mtime_ns, known.directory_id) == (FileState.COMPLETE, file.mtime_ns, file.directory_id):
        return file
    return replace(file, revision=max(file.newness, known.newness + 1))
