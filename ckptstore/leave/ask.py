"""Ask a launch to save and leave: by a file where each rank looks, in the catalog, and by SIGTERM if need be."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import exit_requests, reads, recent
from ckptstore.catalog.runs import find_run
from ckptstore.core.model import launch_key
from ckptstore.disk import exit_flags
from ckptstore.disk.notes import of_living
from ckptstore.disk.owner import is_here
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, UnknownRunError
from ckptstore.leave.follow import by_journals, ending_of, newest_launch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.model import Launch, LaunchKey
    from ckptstore.disk.notes import Note


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How a launch was asked to save and leave.

    `ending` is how it had ended before (empty: it may train), and nothing was done then. `reached` are the directories
    with the request, `unreached` those without, and why; `by_catalog` tells that rank 0 finds it in the catalog too,
    `signalled` are processes of this machine that got SIGTERM, since they look for no request, or none is where they
    do. `away` says why the catalog cannot be used (empty: it can).
    """

    run: str
    launch: Launch
    ending: str
    reached: tuple[str, ...] = ()
    unreached: tuple[tuple[str, str], ...] = ()
    by_catalog: bool = False
    signalled: tuple[int, ...] = ()
    away: str = ""


def ask(database: Database, run: str, reason: str, directories: Iterable[str] = ()) -> Asked:
    """Ask the newest launch of a run to save and leave when its step is done. Twice is as good as once.

    Who is a rank of the run on this machine is asked first: a catalog that is locked or silent delays no request.
    Without the catalog, journals in the run's known places and in `directories` tell of the launch. Raises
    `UnknownRunError`, `UsageError` where no launch was ever begun, and `CatalogUnavailableError` where nothing tells.
    """
    for note in of_living():
        if note.run == run:
            put_flags(launch_key(run, note.launch), run, note.directories, reason)
    away = ""
    try:
        launch, ending, homes = _known(database, run)
    except CatalogUnavailableError as error:
        away = str(error)
        try:
            launch, ending, homes = _known(by_journals(database, run, directories), run)
        except UnknownRunError:
            raise error from None
    if ending:
        return Asked(run=run, launch=launch, ending=ending, away=away)
    notes = [note for note in of_living() if (note.run, note.launch) == (launch.run, launch.id)]
    every = homes.union(*(note.directories for note in notes))
    unreached = put_flags(launch.key, launch.run, every, reason)
    away = away or _ask_by_catalog(database, launch, reason)
    return Asked(
        run=run,
        launch=launch,
        ending="",
        reached=tuple(sorted(every - unreached.keys())),
        unreached=tuple(sorted(unreached.items())),
        by_catalog=not away,
        signalled=tuple(note.pid for note in notes if not _hears(note, unreached) and _terminate(note)),
        away=away,
    )


def _known(database: Database, run: str) -> tuple[Launch, str, set[str]]:
    """The newest launch of a run, how it has ended (empty: it may train), and where its ranks save."""
    run_id = find_run(database, run)
    with database.read() as connection:
        launch = newest_launch(connection, run_id, run)
        return launch, ending_of(connection, launch), _homes(connection, launch)


def take_back(database: Database, run: str) -> bool:
    """Ask the newest launch of a run no more; whether it was asked. Ranks that have heard it leave all the same."""
    run_id = find_run(database, run)
    with database.read() as connection:
        launch = newest_launch(connection, run_id, run)
        homes = _homes(connection, launch)
    was_asked = database.in_write(lambda connection: exit_requests.take_back(connection, launch.key))
    for directory in homes:
        _take_back(directory, launch)
    return was_asked


def _take_back(directory: str, launch: Launch) -> None:
    try:
        exit_flags.take_back(directory, launch.key)
    except FileNotFoundError:
        return  # it is another host's, or gone
    except OSError as error:
        flag = exit_flags.flag_path(directory, launch.key)
        raise CkptstoreError(f"{flag} cannot be removed ({error.strerror})", "remove it as its owner") from None


def put_flags(key: LaunchKey, run: str, directories: Iterable[str], reason: str) -> dict[str, str]:
    """Put the request into each of these directories; why not, by directory, where that failed."""
    tried = ((directory, _put(directory, key, run, reason)) for directory in sorted(directories))
    return {directory: why for directory, why in tried if why}


def _put(directory: str, key: LaunchKey, run: str, reason: str) -> str:
    try:
        exit_flags.put(directory, key, run, reason)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _ask_by_catalog(database: Database, launch: Launch, reason: str) -> str:
    """Put the request into the catalog; why not, where that failed."""
    try:
        database.in_write(lambda connection: exit_requests.ask(connection, launch.key, reason))
    except CatalogUnavailableError as error:
        return str(error)
    return ""


def pass_on(database: Database, launch: Launch, reason: str) -> None:
    """Put a request that is in the catalog where all ranks of the launch look, as far as this host sees that."""
    with database.read() as connection:
        homes = _homes(connection, launch)
    put_flags(launch.key, launch.run, homes, reason)


def _homes(connection: Connection, launch: Launch) -> set[str]:
    """Where the ranks of a launch said that they save; of one that said nothing, where its newest files are."""
    said = {home.directory for home in recent.homes_of(connection, launch.key)}
    step = None if said else reads.newest_step(connection, launch.key, below=None, at_most=None)
    files = () if step is None else reads.files_at(connection, launch, step)
    return said or {str(Path(file.path).parent) for file in files}


def _hears(note: Note, unreached: Mapping[str, str]) -> bool:
    return note.looks and any(directory not in unreached for directory in note.directories)


def _terminate(note: Note) -> bool:
    """Send SIGTERM to another process of this machine; whether it was there and got it."""
    if note.pid == os.getpid() or not is_here(note.process):
        return False
    try:
        os.kill(note.pid, signal.SIGTERM)
    except OSError:
        return False
    return True
