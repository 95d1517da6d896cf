"""Queries for files that are complete or being written, as far as the catalog knows. Deleted files cost nothing."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import rows
from ckptstore.catalog.any_of import any_of, one_of
from ckptstore.catalog.tables import FILES, FILES_OF_LAUNCHES, checkpoints, launches, saves
from ckptstore.core.model import Content, FileState, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.model import Checkpoint, LaunchKey

_LIVE = one_of(checkpoints.c.state, FileState.COMPLETE.value, FileState.IN_PROGRESS.value)


_BETWEEN = "//"  # no recorded path has it, since each is a real path
_UNSETTLED = (checkpoints.c.state == FileState.IN_PROGRESS.value) | (saves.c.kind == Kind.TTP.value)


class Place(NamedTuple):
    """The path of a file, without the rest of its record."""

    id: str
    rank: int
    path: str
    is_complete: bool


def paths(connection: sa.Connection, keys: Iterable[LaunchKey]) -> tuple[set[str], bool]:
    """The paths of all files of these launches, and whether one is unsettled.

    A file is unsettled if it was being written, or if it is of TTP, which renames its directory.
    """
    found: set[str] = set()
    has_unsettled = False
    for joined, unsettled in connection.execute(_paths(connection.dialect.name), {"own_launches": list(keys)}):
        found.update(joined.split(_BETWEEN))
        has_unsettled |= bool(unsettled)
    return found, has_unsettled


def unsettled(connection: sa.Connection, keys: Iterable[LaunchKey]) -> set[tuple[LaunchKey, int]]:
    """The ranks of these launches that have an unsettled file."""
    query = sa.select(saves.c.launch_id, checkpoints.c.rank).distinct().select_from(FILES)
    found = connection.execute(query.where(_OF_LAUNCHES, _LIVE, _UNSETTLED), {"own_launches": list(keys)})
    return {(key, rank) for key, rank in found}


def places(connection: sa.Connection, key: LaunchKey, ranks: Iterable[int]) -> list[Place]:
    """Where the files of these ranks of a launch are."""
    is_complete = checkpoints.c.state == FileState.COMPLETE.value
    query = sa.select(checkpoints.c.id, checkpoints.c.rank, checkpoints.c.path, is_complete).join(saves)
    query = query.where(saves.c.launch_id == key, _LIVE, any_of(checkpoints.c.rank, "own_ranks"))
    return list(map(Place._make, rows.many(connection.execute(query, {"own_ranks": list(ranks)}))))


def files(connection: sa.Connection, key: LaunchKey) -> list[Checkpoint]:
    """The files of a launch."""
    return list(rows.files(connection.execute(rows.FILE_QUERY.where(saves.c.launch_id == key, _LIVE))))


class Doubt(NamedTuple):
    """The recorded fault of a step's state; empty if there is none."""

    step: int
    reason: str


def quarantine_before(connection: sa.Connection, file: Checkpoint) -> Doubt:
    """The fault of the newest file that the rank of this file saved before it in its launch."""
    is_before = (saves.c.launch_id == file.launch_key) & (saves.c.global_step < file.global_step)
    query = (
        sa.select(saves.c.global_step, checkpoints.c.quarantine)
        .select_from(FILES)
        .where(is_before, checkpoints.c.rank == file.rank)
        .order_by(saves.c.global_step.desc(), checkpoints.c.quarantine.is_(None))
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return Doubt(0, "") if row is None else Doubt(row[0], row[1] or "")


def has_any(connection: sa.Connection, key: LaunchKey) -> bool:
    """Whether any file of a launch was ever recorded, complete or being written."""
    return connection.execute(_HAS_ANY, {"own_launch": key}).first() is not None


def counters(connection: sa.Connection, keys: Iterable[LaunchKey]) -> dict[tuple[LaunchKey, int], int]:
    """The highest optimizer counters that ranks of these launches have registered, as far as the newest saves tell."""
    found: dict[tuple[LaunchKey, int], int] = {}
    for key in keys:
        for rank, counter in rows.many(connection.execute(_COUNTERS, {"own_launch": key})):
            found[key, rank] = counter
    return found


def has_finished(connection: sa.Connection, key: LaunchKey) -> bool:
    """Whether a launch has ever finished a file after step 0, and not only damaged ones; it may be gone by now."""
    return connection.execute(_HAS_FINISHED, {"own_launch": key}).first() is not None


def exits(connection: sa.Connection, run: int) -> list[Checkpoint]:
    """The files of graceful exits of a run."""
    chosen = (launches.c.run_id == run) & (saves.c.kind == Kind.GRACEFUL_EXIT.value)
    return list(rows.files(connection.execute(rows.FILE_QUERY.where(chosen, _LIVE))))


def newest_whole_path(
    connection: sa.Connection, run: int, rank: int, *, but: str, share_of: LaunchKey | None
) -> str | None:
    """The path of a rank's newest complete file of a full state, other than the path `but`.

    `share_of` asks for a share that the rank saved in this launch: other launches may divide the state differently.
    """
    content = Content.FULL if share_of is None else Content.SHARE
    query = sa.select(checkpoints.c.path).select_from(FILES_OF_LAUNCHES)
    query = query.where(
        launches.c.run_id == run,
        checkpoints.c.rank == rank,
        checkpoints.c.state == FileState.COMPLETE.value,
        checkpoints.c.content == content.value,
        checkpoints.c.path != but,
    )
    query = query if share_of is None else query.where(saves.c.launch_id == share_of)
    newest_first = query.order_by(launches.c.launch_order.desc(), saves.c.global_step.desc())
    return connection.execute(newest_first.limit(1)).scalar()


# Statements that every start needs are built once: building one takes longer than running it.

_OF_LAUNCH, _OF_LAUNCHES = saves.c.launch_id == sa.bindparam("own_launch"), any_of(saves.c.launch_id, "own_launches")
_NEWEST = (
    sa.select(saves.c.id)
    .where(saves.c.launch_id == sa.bindparam("own_launch"))
    .order_by(saves.c.global_step.desc())
    .limit(2)  # in the last one, a rank may have died
)
_COUNTERS = (
    sa.select(checkpoints.c.rank, sa.func.max(checkpoints.c.optimizer_step))
    .where(checkpoints.c.save_id.in_(_NEWEST.subquery().select()), checkpoints.c.optimizer_step.is_not(None))
    .group_by(checkpoints.c.rank)
)
_HAS_ANY = sa.select(saves.c.id).where(_OF_LAUNCH).limit(1)
_HAS_FINISHED = (
    sa.select(checkpoints.c.id)
    .join(saves)
    .where(
        _OF_LAUNCH,
        saves.c.global_step > 0,
        sa.not_(one_of(checkpoints.c.state, FileState.IN_PROGRESS.value, FileState.DAMAGED.value)),
    )
    .limit(1)
)


@cache
def _paths(dialect: str) -> sa.Select[Any]:
    """A query for one row a step, not one a file: a job with many ranks has tens of thousands of files."""
    joined = sa.func.group_concat if dialect == "sqlite" else sa.func.string_agg
    return (
        sa.select(joined(checkpoints.c.path, sa.literal(_BETWEEN)))
        .add_columns(sa.func.max(sa.case((_UNSETTLED, 1), else_=0)))
        .select_from(FILES)
        .where(_OF_LAUNCHES, _LIVE)
        .group_by(saves.c.launch_id, saves.c.global_step)
    )
