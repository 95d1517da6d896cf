"""Counts over all runs at once, for monitoring: by the runs' names, however many there are, in one statement each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import reads
from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.tables import FILES, FILES_OF_LAUNCHES, checkpoints, launches, saves
from ckptstore.core.model import FileState

if TYPE_CHECKING:
    from collections.abc import Sequence


class LastSave(NamedTuple):
    """What a save took on its slowest rank, in seconds (None: not measured), and one of its files."""

    seconds: float | None
    path: str


def damaged_files(connection: sa.Connection) -> dict[str, int]:
    """How many files of each run are damaged; runs without one are left out."""
    return _by_name(connection, _DAMAGED)


def quarantined_states(connection: sa.Connection) -> dict[str, int]:
    """How many states of each run are there and quarantined; runs without one are left out."""
    return _by_name(connection, _QUARANTINED)


def last_saves(connection: sa.Connection, ids: Sequence[str]) -> dict[str, LastSave]:
    """What is known of these saves, by their ids."""
    found = connection.execute(_LAST_SAVES, {"own_ids": list(ids)}) if ids else ()
    return {save: LastSave(seconds, path) for save, seconds, path in found}


def _by_name(connection: sa.Connection, query: sa.Select[Any]) -> dict[str, int]:
    names = reads.names_of_runs(connection)
    return {names[run]: number for run, number in connection.execute(query) if run in names}


_DAMAGED = (
    sa.select(launches.c.run_id, sa.func.count())
    .select_from(FILES_OF_LAUNCHES)
    .where(checkpoints.c.state == FileState.DAMAGED.value)
    .group_by(launches.c.run_id)
)
_STATES = (
    sa.select(launches.c.run_id, launches.c.id, saves.c.global_step)
    .distinct()
    .select_from(FILES_OF_LAUNCHES)
    .where(checkpoints.c.quarantine.is_not(None), checkpoints.c.state == FileState.COMPLETE.value)
    .subquery()
)
_QUARANTINED = sa.select(_STATES.c.run_id, sa.func.count()).group_by(_STATES.c.run_id)
_TOOK = sa.func.coalesce(checkpoints.c.written_after, checkpoints.c.pause)
_LAST_SAVES = (
    sa.select(saves.c.id, sa.func.max(_TOOK), sa.func.min(checkpoints.c.path))
    .select_from(FILES)
    .where(any_of(saves.c.id, "own_ids"))
    .group_by(saves.c.id)
)
