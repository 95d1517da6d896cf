"""Where records go: into the journals beside the files first, then into the catalog.

A record that is in a journal is kept, whatever becomes of the catalog: `sync`, `resolve` and `scan` take it up.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import replay, schema, verifications, writes
from ckptstore.core.model import FileState
from ckptstore.errors import CatalogUnavailableError
from ckptstore.ops import entries, strategies
from ckptstore.ops.put_said import put_began, set_verdict
from ckptstore.ops.sync import take_up
from ckptstore.storage.journal import JournalWriter, directory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.reads import Source
    from ckptstore.core.model import Checkpoint, Rule
    from ckptstore.ops.records import Began, Ended, LayoutFile, Pinned, Ruled, Tagged, Verdict
    from ckptstore.storage.journal import Entry, Span

    _Put = Callable[[Connection, Sequence[Checkpoint], datetime], None]

log = logging.getLogger("ckptstore")

_CATALOG = "the catalog"


class Ledger:
    """The journals that one process writes, and the catalog.

    `stem` names its journals: `rank_{R}` for a rank, `shared` for who speaks for others. `behind` tells that the
    catalog could not be used and lacks what the journals have, `postponed` that it gets many records at once instead
    of one by one: until `catch_up` has done its work, records go into the journals only.
    """

    def __init__(self, database: Database, stem: str, writer: str, began: Callable[[str], Began | None]) -> None:
        self.database = database
        self.behind = False
        self.postponed = False
        self._stem = stem
        self._writer = writer
        self._began = began
        self._writers: dict[str, JournalWriter] = {}
        self._told: dict[str, dict[str, Began]] = {}
        self._news: list[Began] = []
        self._complained: set[str] = set()
        self._leaving = threading.Lock()
        self._left = 0

    def record(
        self, files: Sequence[Checkpoint], verdict: Verdict | None = None, *, put: _Put = writes.record_checkpoints
    ) -> None:
        """Keep records of files, and with them what came of the plan of the launch that wrote them.

        `put` writes them to the catalog. Raises `CatalogUnavailableError` where neither journal nor catalog took them.
        """
        now = datetime.now(timezone.utc)
        stamped = [file if file.created_at else replace(file, created_at=now) for file in files]
        told = self._by_home(stamped)
        if verdict is not None and told:
            directory = next(iter(told))
            told[directory].append(entries.of_verdict(verdict, directory))

        def write(connection: Connection) -> None:
            put(connection, stamped, now)
            if verdict is not None:
                set_verdict(connection, verdict)

        self._keep(told, sorted({file.launch for file in stamped}), write)

    def mark(self, files: Sequence[Checkpoint], state: FileState, problem: Rule | None = None) -> None:
        """Keep what became of these files. Raises as `record` does."""
        now = datetime.now(timezone.utc)
        marked = [replace(file, state=state, problem=problem, amended_at=now) for file in files]
        write = partial(writes.mark, ids=[file.id for file in files], state=state, problem=problem, at=now)
        self._keep(self._by_home(marked), sorted({file.launch for file in marked}), write)

    def amend(self, changes: Sequence[tuple[Checkpoint, Checkpoint]]) -> list[bool]:
        """Keep what a look at the disk showed of files, each as it was recorded and as it is; whether each was taken.

        One whose record changed meanwhile is not. Raises as `record` does, and where the catalog cannot be used.
        """
        now = datetime.now(timezone.utc)
        stamped = [(before, replace(after, amended_at=now)) for before, after in changes]
        files = [after for _, after in stamped]
        stood: list[bool] = []

        def write(connection: Connection) -> None:
            stood[:] = verifications.amend(connection, stamped)  # it may be tried again

        self._keep(self._by_home(files), sorted({file.launch for file in files}), write)
        if self.behind:  # the journals have it: if the catalog is back, so has it
            self.catch_up()
            return [True] * len(changes)
        return stood

    def announce(self, source: Source) -> None:
        """Keep where a rank saves: from now on the journal of that directory has what is in and below it."""
        directory = source.directory
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._complain(directory, error)
        self._home(directory)
        entry = {directory: [entries.of_source(source)]}

        def write(connection: Connection) -> None:
            writes.add_source(
                connection,
                launch_id=source.launch,
                rank=source.rank,
                directory=directory,
                kind=source.kind,
                prefix=source.prefix,
                breakpoint_prefix=source.breakpoint_prefix,
                names_before=sorted(source.names_before),
                host=source.host,
                content=source.content,
            )

        self._keep(entry, [source.launch], write)

    def end(self, ended: Ended) -> None:
        """Keep how training ended, in the journals that this process has begun."""
        own = {directory: [entries.of_end(ended)] for directory in self._first()}

        def write(connection: Connection) -> None:
            writes.set_ending(
                connection,
                launch_id=ended.launch,
                rank=ended.rank,
                global_step=ended.global_step,
                optimizer_step=ended.optimizer_step,
                error=ended.error,
                quarantine=ended.quarantine,
                now=ended.at,
            )

        self._keep(own, [ended.launch], write)

    def judge(self, verdict: Verdict) -> None:
        """Keep what came of the plan of a launch, as `end` does."""
        own = {directory: [entries.of_verdict(verdict, directory)] for directory in self._first()}
        self._keep(own, [verdict.launch], lambda connection: set_verdict(connection, verdict))

    def keep_layout_file(self, kept: LayoutFile) -> None:
        """Keep a strategy or group info file of a launch, as `end` does."""
        own = {directory: [entries.of_layout_file(kept, directory)] for directory in self._first()}
        write = partial(strategies.put, kept=kept)
        self._keep(own, [kept.launch], write, tells_all=entries.has_content(kept))

    def steps_per_epoch(self, launch: str, steps: int, *, batch_size: int | None, shards: int | None) -> None:
        """Keep how many batches an epoch of the launch has. Without a journal yet, the first record will tell it."""
        if self.behind and not self._writers:
            return
        told: dict[str, list[Entry]] = {directory: [] for directory in self._writers}

        def write(connection: Connection) -> None:
            writes.set_steps_per_epoch(connection, launch, steps, batch_size=batch_size, shards=shards)

        try:
            self._keep(told, [launch], write)
        except CatalogUnavailableError as error:
            self.fall_behind(error)

    def tell(self, launch: str, directories: Iterable[str] = ()) -> None:
        """Journal what is known of a launch now, where its records are, and in `directories`."""
        for directory in directories:
            self._home(directory)
        self._keep({directory: [] for directory in self._writers}, [launch])

    def pass_on(self, word: Pinned | Tagged | Ruled, launch: str, directory: str) -> None:
        """Journal what somebody said of a launch's run, a pin, a tag or a policy; the catalog has it already."""
        self._home(directory)
        self._keep({directory: [entries.of_word(word)]}, [launch])

    def at_once(self, file: Checkpoint) -> bool:
        """Journal that a file is being recorded, waiting for nobody and nothing; whether that could be done."""
        begun = replace(file, created_at=datetime.now(timezone.utc), state=FileState.IN_PROGRESS, mtime_ns=None)
        writer = self._writers.get(self._home_of(file.path))
        directory = self._home_of(file.path)
        if writer is None or not self._told.get(directory):
            return False
        try:
            return writer.append_at_once([entries.of_file(begun, directory)])
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

    def inherit(self, other: Ledger) -> None:
        """What another one, which wrote nothing yet, has found out about the catalog, and has said."""
        self.behind = other.behind
        self._complained |= other._complained

    def fall_behind(self, error: CatalogUnavailableError) -> None:
        """The catalog cannot be used: until `catch_up` has done its work, records go into the journals only."""
        self.behind = True
        self.complain(f"{error}. Records are in the journals, and reach the catalog later.")

    def complain(self, message: str) -> None:
        """Say what is wrong with the catalog, once, until it can be used again."""
        self._say(_CATALOG, message)

    def close(self) -> None:
        """Let go of the journals; who writes to one takes it up again."""
        for writer in self._writers.values():
            writer.close()

    def _keep(
        self,
        told: Mapping[str, list[Entry]],
        launches: Sequence[str],
        write: Callable[[Connection], None] | None = None,
        *,
        tells_all: bool = True,
    ) -> None:
        """Journal what is told, by directory, then write it to the catalog; None: that has it, or learns it later.

        `tells_all`: the journals get all that the catalog gets. A power failure may then take it from the catalog, but
        for the first of each journal: one that the catalog does not know is not read.
        """
        written = [self._journal(directory, launches, some) for directory, some in told.items()]
        spans = [span for span in written if span is not None]
        news, self._news = self._news, []
        is_journalled = bool(spans) and len(spans) == len(written)
        if (is_journalled and self._is_for_later()) or (write is None and not spans):
            return

        def work(connection: Connection) -> list[str]:
            put_began(connection, news)  # another rank may have decided that without the catalog
            if write is not None:
                write(connection)
            return [span.path for span in spans if not self._went_on(connection, span, launches)]

        try:
            is_kept = is_journalled and tells_all and all(span.begin for span in spans)
            gaps = self.database.in_write(work, is_kept=is_kept)
            if gaps:
                take_up(self.database, gaps)
        except CatalogUnavailableError as error:
            if write is not None and not is_journalled:
                raise
            self.fall_behind(error)

    def _is_for_later(self) -> bool:
        """Whether what is journalled now is left to `catch_up`."""
        with self._leaving:
            self._left += self.is_late
            return self.is_late

    def _went_on(self, connection: Connection, span: Span, launches: Sequence[str]) -> bool:
        began = self._told[directory_of(span.path)].get(launches[0])
        to = replay.TakenUp(span.end, span.head)
        return began is not None and replay.went_on(connection, began.launch.run, span.path, span.begin, to)

    def _journal(self, directory: str, launches: Sequence[str], told: Sequence[Entry]) -> Span | None:
        """Append to the journal of a directory, the launches that it does not know first; None where it cannot be."""
        writer = self._writers[directory]
        try:
            if not writer.is_as_left():
                self._told[directory] = {}
            known = self._told[directory]
            new = {
                launch: began
                for launch in launches
                if (began := self._began(launch)) is not None and known.get(launch) != began
            }
            text = [*(entries.of_launch(began, directory) for began in new.values()), *told]
            if not text:
                return None
            span = writer.append(text)
        except OSError as error:
            self._complain(directory, error)
            return None
        known |= new
        self._news += [began for began in new.values() if began.at is not None]
        return span

    def _first(self) -> list[str]:
        """The directory whose journal has what is of no file; none before the first."""
        return list(self._writers)[:1]

    def _home(self, directory: str) -> None:
        if directory not in self._writers:
            self._writers[directory] = JournalWriter(directory, self._stem, self._writer)
            self._told[directory] = {}

    def _home_of(self, path: str) -> str:
        """The nearest directory above that something was announced for, else the file's own."""
        above = path
        while above := above.rpartition("/")[0]:
            if above in self._writers:
                return above
        return "/" if "/" in self._writers else str(Path(path).parent)

    def _by_home(self, files: Sequence[Checkpoint]) -> dict[str, list[Entry]]:
        told: dict[str, list[Entry]] = {}
        for file in files:
            directory = self._home_of(file.path)
            self._home(directory)
            told.setdefault(directory, []).append(entries.of_file(file, directory))
        return told

    def _complain(self, directory: str, error: OSError) -> None:
        why = error.strerror or str(error)
        self._say(directory, f"the journal in {directory} cannot be written ({why}): records go to the catalog alone")

    def _say(self, about: str, message: str) -> None:
        """Say it once."""
        if about not in self._complained:
            self._complained.add(about)
            log.warning("%s", message)
