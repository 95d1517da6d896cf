"""Which files of a run may be verified, and how many are known to be gone."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from ckptstore.catalog.any_of import one_of
from ckptstore.catalog.tables import FILES_OF_LAUNCHES, checkpoints, launches, saves, trash
from ckptstore.core.model import FileState, Location


class Candidate(NamedTuple):
    """A file that may be verified; `size` is in bytes, as recorded."""

    id: str
    path: str
    size: int
    launch: str
    global_step: int
    is_damaged: bool = False


def candidates(connection: sa.Connection, run: int) -> list[Candidate]:
    """The files of a run to verify, of the newest launch and step first; not those that are known to be gone."""
    there = one_of(checkpoints.c.state, FileState.COMPLETE.value, FileState.DAMAGED.value)
    query = (
        sa.select(
            checkpoints.c.id,
            checkpoints.c.path,
            sa.func.coalesce(checkpoints.c.size, 0),
            launches.c.name,
            saves.c.global_step,
            checkpoints.c.state == FileState.DAMAGED.value,
        )
        .select_from(FILES_OF_LAUNCHES)
        .where(launches.c.run_id == run, there)
        .order_by(launches.c.launch_order.desc(), saves.c.global_step.desc(), checkpoints.c.rank, checkpoints.c.path)
    )
    return [Candidate(*row) for row in connection.execute(query)]


def missing(connection: sa.Connection, run: int) -> int:
    """How many files of a run a look at the disk found gone, without those that gc deleted.

    No record says whether MindSpore's keep_checkpoint_max or a person deleted a file, or whether it was lost.
    """
    is_deleted = sa.select(trash.c.id).where(
        trash.c.checkpoint_id == checkpoints.c.id, trash.c.wanted == Location.GONE.value
    )
    query = (
        sa.select(sa.func.count())
        .select_from(FILES_OF_LAUNCHES)
        .where(
            launches.c.run_id == run,
            checkpoints.c.state == FileState.MISSING.value,
            checkpoints.c.reported == FileState.MISSING.value,  # else a later save took its path, or gc deleted it
            sa.not_(is_deleted.exists()),
        )
    )
    return connection.execute(query).scalar_one()
