"""Puts facts into a catalog as events, without any journal: for catalogs that a test makes up."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from ckptstore.api import Catalog
from ckptstore.catalog.project import project
from ckptstore.core.events import Event, FileRecorded, LaunchStarted
from ckptstore.core.model import Checkpoint, Launch


def put(catalog: Catalog, events: Iterable[Event]) -> None:
    """Put events in, in a transaction of their own."""
    with catalog.database.write() as connection:
        project(connection, list(events))


def put_files(catalog: Catalog, files: Iterable[Checkpoint]) -> None:
    """Put records of files in."""
    now = datetime.now(timezone.utc)
    put(catalog, [FileRecorded(file if file.created_at else replace(file, created_at=now)) for file in files])


def put_start(catalog: Catalog, launch: Launch, parent: Launch, step: int, files: Sequence[Checkpoint]) -> None:
    """Say that a launch starts from these files of a step of another one."""
    facts = replace(launch, decided=True, parent=parent.id, parent_step=step, start_step=step, branched=False)
    plan = tuple((file.rank, file) for file in files)
    put(catalog, [LaunchStarted(facts, datetime.now(timezone.utc), parent, plan)])
