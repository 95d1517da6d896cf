"""Records of files that were found on disk, for paths of which nobody has said more meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog import reads, writes
from ckptstore.catalog.among import among
from ckptstore.catalog.tables import checkpoints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from ckptstore.core.model import Checkpoint

    Recorded = Mapping[str, Sequence[Checkpoint]]


def still_unrecorded(connection: sa.Connection, files: Sequence[Checkpoint], recorded: Recorded) -> list[Checkpoint]:
    """Those of the files whose paths have the same records as when they were looked for: `recorded`, by path."""
    now = reads.files_at_paths(connection, [file.path for file in files])
    return [file for file in files if _by_id(now.get(file.path, ())) == _by_id(recorded.get(file.path, ()))]


def put(connection: sa.Connection, files: Sequence[Checkpoint], now: datetime, *, recorded: Recorded) -> None:
    """Write the records of those files; who wrote one meanwhile knew the file better, and what he said stays.

    But for the moment of a record: the first counts, as where journals are read.
    """
    places = among(connection, checkpoints.c.path, [file.path for file in files])
    locked = sa.select(checkpoints.c.id).where(places).order_by(checkpoints.c.id).with_for_update()
    connection.execute(locked).all()
    known = {file.id for some in recorded.values() for file in some}
    taken = still_unrecorded(connection, files, recorded)
    writes.record_checkpoints(connection, [file for file in taken if file.id in known], now)
    writes.adopt_checkpoints(connection, [file for file in taken if file.id not in known], now)
    left = {file.id for file in files} - {file.id for file in taken}
    writes.set_first_moments(connection, [file for file in files if file.id in left], now)


def _by_id(files: Sequence[Checkpoint]) -> dict[str, Checkpoint]:
    return {file.id: file for file in files}
