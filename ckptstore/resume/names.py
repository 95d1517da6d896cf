"""Renames a run, hides it, or brings it back; files and records stay, and the journals get an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, removals, user_events
from ckptstore.catalog.runs import find_called, find_run, how_back
from ckptstore.core.events import RunForgotten, RunRenamed
from ckptstore.disk.run_directories import remember, remembered
from ckptstore.errors import RefusedError
from ckptstore.journal.recorder import shared, tell_everywhere
from ckptstore.journal.sync import sync_run
from ckptstore.resume.join import check_new_run
from ckptstore.resume.overview import RunRow, run_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.events import Event
    from ckptstore.core.model import LaunchKey


@dataclass(frozen=True)
class RunShown:
    """The facts of a run that `forget` shows before it changes anything."""

    row: RunRow
    directories: tuple[str, ...]
    trash_files: int
    trash_bytes: int


def look(database: Database, run: str) -> RunShown:
    """The facts of the run that `forget` would hide. Raises `UnknownRunError` if there is none, or it is forgotten."""
    run_id = find_run(database, run)
    sync_run(database, run_id)
    with database.read() as connection:
        directories = tuple(sorted(reads.directories_of(connection, run_id)))
        items = removals.items_of(connection, run_id, settled=True)
    return RunShown(run_row(database, run), directories, len(items), sum(item.size for item in items))


def forget(database: Database, run: str, *, forgotten: bool) -> bool:
    """Hide a run from every command, or bring it back. Returns whether that changed anything."""
    found = find_called(database, run, even_forgotten=True)

    def decide(connection: Connection) -> RunForgotten:
        return user_events.said_now(connection, RunForgotten, found.first, forgotten)

    _tell(database, found.id, decide)
    return found.forgotten != forgotten


def rename(database: Database, run: str, name: str) -> bool:
    """Give a run another name. Returns whether that changed anything. Its first name still leads to it.

    Raises `RefusedError` if the name leads to another run.
    """
    check_new_run(name)
    found = find_called(database, run)
    with database.read() as connection:
        other = reads.called(connection, name)
    if other is not None and other.id != found.id:
        hint = how_back(name) if other.forgotten else "give another name"
        raise RefusedError(f"there is a run {name!r} already{', which was forgotten' * other.forgotten}", hint)

    def decide(connection: Connection) -> RunRenamed:
        return user_events.said_now(connection, RunRenamed, found.first, name)

    _tell(database, found.id, decide)
    for directory in remembered(database.name, found.first):
        remember(database.name, [name], directory)
    return found.name != name


def _tell(database: Database, run: int, decide: Callable[[Connection], RunForgotten | RunRenamed]) -> None:
    """Record the event in every directory of the run that is present.

    Also one that changes nothing: journals may tell of another that was killed before it reached the catalog.
    """
    recorder = shared(database)

    def work(connection: Connection) -> tuple[Sequence[Event], list[LaunchKey]]:
        tell_everywhere(recorder, connection, run)
        newest = reads.launches_of(connection, run)[-1:]
        return [decide(connection)], [launch.key for launch in newest]

    recorder.record_decided(work)
