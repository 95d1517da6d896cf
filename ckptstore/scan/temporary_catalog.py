"""Reads a directory's journals into a temporary catalog, for callers without write access."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import journals, reads
from ckptstore.catalog.engine import in_memory
from ckptstore.catalog.project import add_run, project
from ckptstore.core.events import FileRecorded, LaunchStarted, SourceAdded
from ckptstore.scan.known_files import recorded_below

if TYPE_CHECKING:
    from pathlib import Path

    from ckptstore.catalog.engine import Database


def temporary_catalog(database: Database, root: Path, run: str) -> Database:
    """A catalog in memory with what this one has of a run, and of the files below a directory with their runs.

    Of the journals it has all, so that one below the directory is taken up from where it was read to. What becomes of a
    launch (its plan, its end) is not in it.
    """
    now = datetime.now(timezone.utc)
    prefix = f"{str(root).rstrip('/')}/"
    with database.read() as connection:
        below, moved = recorded_below(connection, root)
        known = journals.every_journal(connection)
        told = {name for name, own in known.items() if any(path.startswith(prefix) for path in own)}
        named = {*told, *(file.run for file in (*below, *moved.values())), run}
        ids = {name: run_id for name in named if (run_id := reads.run_id(connection, name)) is not None}
        of_run = reads.files_of(connection, ids[run]) if run in ids else []
        files = {file.id: file for file in (*of_run, *below, *moved.values())}
        launches = [launch for run_id in ids.values() for launch in reads.launches_of(connection, run_id)]
        sources = [source for run_id in ids.values() for source in reads.sources_of(connection, run_id)]
    copy = in_memory()
    with copy.write() as connection:
        new_ids = {name: add_run(connection, name) for name in ids.keys() | known.keys()}
        project(connection, [LaunchStarted(launch.undecided()) for launch in launches])
        project(connection, [SourceAdded(source, now) for source in sources])
        project(connection, list(map(FileRecorded, files.values())))
        for name, own in known.items():
            journals.set_taken_up(connection, own, dict.fromkeys(own, (new_ids[name],)))
    return copy
