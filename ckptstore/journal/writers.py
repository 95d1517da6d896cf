"""Who writes which journals: a rank its own, who speaks for others shared ones."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ckptstore.catalog import journals, reads
from ckptstore.core.events import LaunchStarted
from ckptstore.core.model import FileState
from ckptstore.disk import presence
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import Home
from ckptstore.journal.jsonl import SHARED, directory_of
from ckptstore.journal.recorder import Recorder
from ckptstore.journal.unread import nearest
from ckptstore.outside import os, socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint, Launch, LaunchKey


def for_rank(database: Database, rank: int, launch: Launch, started: Callable[[], LaunchStarted]) -> Recorder:
    """The recorder of one rank of a launch; `started` returns the present facts of the launch."""
    return Recorder(database, f"rank_{rank}", launch.key, lambda named: started() if named == launch.key else None)


def shared(database: Database, recorded: Mapping[str, Home] = MappingProxyType({})) -> Recorder:
    """The recorder of a process that writes for any ranks: adopted files, pins.

    `recorded` are the records of the directories of a run, as `homes` returns them.
    """

    def started(launch: LaunchKey) -> LaunchStarted | None:
        with database.read() as connection:
            found = reads.launch(connection, launch)
        return None if found is None else LaunchStarted(found.undecided())

    return Recorder(database, SHARED, _this_process(), started, recorded)


def homes(connection: Connection, run: int) -> dict[str, Home]:
    """The records of the directories of a run, and of those whose journals cover directories below."""
    found: dict[str, Home] = {}
    journalled = {directory_of(path) for path in journals.journals_of(connection, run)}
    for source in reads.sources_of(connection, run):
        found.setdefault(source.directory, Home(set(), set())).identities.update({source.directory_id} - {""})
    for path, identity in reads.recorded_paths(connection, run):
        directory = presence.directory_of(path)
        own = found.setdefault(directory, Home(set(), set()))
        if identity:
            own.identities.add(identity)
            continue
        own.places.add(presence.below(directory, path))
        if above := nearest(path, journalled):
            found.setdefault(above, Home(set(), set())).places.add(presence.below(above, path))
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
    """Keep what a look at the catalog decides to say of a run; whether that was anything.

    `decide` returns the events, and files of the run: the events are journalled beside one of those, where a catalog
    that is made anew finds them. Of a run without files the catalog alone has them.
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

    recorder.decide(work)
    return bool(said)


def _file_to_tell(files: Iterable[Checkpoint]) -> Checkpoint:
    """Beside which of these files to journal: the first whose directory is present and can be written to.

    Those that still count come first. A disk may be lost, or a tree moved, whose files are in the catalog still; and a
    backup that was scanned has records of its files.
    """
    in_order = sorted(files, key=lambda file: (file.state in (FileState.MISSING, FileState.MOVED), file.path))
    of_directories: dict[str, Checkpoint] = {}
    for file in in_order:
        of_directories.setdefault(presence.directory_of(file.path), file)
    for directory, file in of_directories.items():
        folder = f"{directory}/{FOLDER}"
        is_there = not presence.absence(directory, presence.home_of(file))
        if is_there and os.access(folder if os.path.isdir(folder) else directory, os.W_OK):
            return file
    return next(iter(of_directories.values()))


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
