"""Who writes which journals: a rank its own, who speaks for others shared ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.core.events import LaunchStarted
from ckptstore.disk.claims import FOLDER
from ckptstore.journal.jsonl import SHARED
from ckptstore.journal.recorder import Recorder
from ckptstore.outside import os, socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.events import Event
    from ckptstore.core.model import Launch, LaunchKey


def for_rank(database: Database, rank: int, launch: Launch, started: Callable[[], LaunchStarted]) -> Recorder:
    """What one rank of a launch writes; `started` tells what is known of the launch by now."""
    return Recorder(database, f"rank_{rank}", launch.key, lambda named: started() if named == launch.key else None)


def shared(database: Database) -> Recorder:
    """What a process writes that speaks for whatever ranks: adopted files, pins. Close it when that is done."""

    def started(launch: LaunchKey) -> LaunchStarted | None:
        with database.read() as connection:
            found = reads.launch(connection, launch)
        return None if found is None else LaunchStarted(found.undecided())

    return Recorder(database, SHARED, _this_process(), started)


def directory_to_tell(paths: Iterable[str]) -> str:
    """Where to journal what is said of these files: the first of their directories that can be written to, as it seems.

    A disk may be lost, or a tree moved, whose files are in the catalog still. One that has journals goes before those
    that have none: an empty mount point with a journal would pass for a directory whose files are gone.
    """
    directories = sorted({path.rpartition("/")[0] for path in paths})
    places = [(f"{each}/{FOLDER}", each) for each in directories] + [(each, each) for each in directories]
    return next((each for place, each in places if os.access(place, os.W_OK)), directories[0])


def record_of_run(
    database: Database, decide: Callable[[Connection], tuple[Sequence[Event], Mapping[str, LaunchKey]]]
) -> bool:
    """Keep what a look at the catalog decides to say of a run; whether that was anything.

    `decide` returns the events, and paths of files of the run with their launches: the events are journalled beside one
    of those, where a catalog that is made anew finds them. Of a run without files the catalog alone has them.
    """
    recorder = shared(database)
    said: list[Event] = []

    def work(connection: Connection) -> tuple[Sequence[Event], list[LaunchKey]]:
        events, files = decide(connection)
        said[:] = events
        if not events or not files:
            return events, []
        directory = directory_to_tell(files)
        recorder.home(directory)
        return events, [launch for path, launch in files.items() if path.rpartition("/")[0] == directory][:1]

    try:
        recorder.decide(work)
    finally:
        recorder.close()
    return bool(said)


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
