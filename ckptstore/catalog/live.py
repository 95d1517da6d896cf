"""Files that are there, or being written, as far as the catalog knows; what was deleted before costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import rows
from ckptstore.catalog.tables import checkpoints, launches, saves
from ckptstore.core.model import Content, FileState, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.model import Checkpoint

_LIVE = checkpoints.c.state.in_([FileState.COMPLETE.value, FileState.IN_PROGRESS.value])


class Place(NamedTuple):
    """Where a file is, and no more: a wide job has tens of thousands, of which few need a second look."""

    id: str
    launch: str
    rank: int
    path: str
    is_ttp: bool
    is_complete: bool


def places(connection: sa.Connection, launch_ids: Iterable[str]) -> list[Place]:
    """Where the files of these launches are."""
    query = (
        sa.select(checkpoints.c.id, saves.c.launch_id, checkpoints.c.rank, checkpoints.c.path)
        .add_columns(saves.c.kind == Kind.TTP.value, checkpoints.c.state == FileState.COMPLETE.value)
        .join(saves)
        .where(saves.c.launch_id.in_(list(launch_ids)), _LIVE)
    )
    return [Place._make(row) for row in rows.many(connection.execute(query))]


def files(connection: sa.Connection, launch_id: str) -> list[Checkpoint]:
    """The files of a launch."""
    return list(rows.files(connection.execute(rows.file_query().where(saves.c.launch_id == launch_id, _LIVE))))


def has_finished(connection: sa.Connection, launch_id: str) -> bool:
    """Whether a launch has saved a state, whatever became of it; an untrained network is none."""
    unfinished = (FileState.IN_PROGRESS.value, FileState.DAMAGED.value)
    query = sa.select(checkpoints.c.id).join(saves).where(saves.c.launch_id == launch_id, saves.c.global_step > 0)
    return connection.execute(query.where(checkpoints.c.state.not_in(unfinished)).limit(1)).first() is not None


def exits(connection: sa.Connection, run: int) -> list[Checkpoint]:
    """The files of graceful exits of a run."""
    chosen = (launches.c.run_id == run) & (saves.c.kind == Kind.GRACEFUL_EXIT.value)
    return list(rows.files(connection.execute(rows.file_query().where(chosen, _LIVE))))


def newest_whole_path(connection: sa.Connection, run: int, rank: int, *, but: str) -> str | None:
    """Where the newest whole file of the full state of a rank is, another one than at the path `but`."""
    joined = checkpoints.join(saves).join(launches, launches.c.id == saves.c.launch_id)
    chosen = (
        (launches.c.run_id == run)
        & (checkpoints.c.rank == rank)
        & (checkpoints.c.state == FileState.COMPLETE.value)
        & (checkpoints.c.content == Content.FULL.value)
        & (checkpoints.c.path != but)
    )
    query = sa.select(checkpoints.c.path).select_from(joined).where(chosen)
    newest = query.order_by(launches.c.launch_order.desc(), saves.c.global_step.desc()).limit(1)
    return connection.execute(newest).scalar()
