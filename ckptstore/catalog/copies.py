"""Queries about tiers and the copies in them."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import rows
from ckptstore.catalog.any_of import any_of, one_of
from ckptstore.catalog.tables import FILES_OF_LAUNCHES, checkpoints, copies, launches, saves, tiers
from ckptstore.core.copies import MADE, ON_NODE, Beside, Copy, CopyState, Declared, Tier, nearest_first
from ckptstore.core.events import moment_of
from ckptstore.core.model import Content, FileState
from ckptstore.core.naming import SEVERAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from ckptstore.core.model import Checkpoint


def tiers_of(connection: sa.Connection) -> list[Declared]:
    """Every tier that the catalog knows, removed ones too, nearest first."""
    found = [
        Declared(
            Tier(row.name, row.url, row.level), row.declared, None if row.version < "1" else moment_of(row.version)
        )
        for row in connection.execute(_TIERS)
    ]
    return sorted(found, key=lambda each: (each.tier.level, each.tier.name, each.tier.url))


def copies_of(connection: sa.Connection, ids: Sequence[str]) -> dict[str, tuple[Copy, ...]]:
    """All that is known of copies of these files, by the file's id, nearest first."""
    return _by_file(connection.execute(_OF_FILES, {"own_ids": list(ids)})) if ids else {}


def ready_copies(connection: sa.Connection, files: Iterable[Checkpoint]) -> dict[str, tuple[Copy, ...]]:
    """The ready copies of these files, by the file's id, nearest first; files without one are left out."""
    digests = {file.id: file.digest for file in files}
    query = _OF_FILES.where(_IS_READY, IN_USE)
    known = _by_file(connection.execute(query, {"own_ids": list(digests)})) if digests else {}
    ready = {file: tuple(copy for copy in some if copy.is_of(digests[file])) for file, some in known.items()}
    return {file: some for file, some in ready.items() if some}


def copies_of_run(connection: sa.Connection, run: int) -> dict[str, tuple[Copy, ...]]:
    """All that is known of copies of the files of a run in tiers in use, by the file's id, nearest first."""
    joined = _IN_TIERS.join(launches, launches.c.id == copies.c.launch_id)
    return _by_file(connection.execute(_OF.select_from(joined).where(launches.c.run_id == run, IN_USE)))


def lacking(connection: sa.Connection, run: int, tier: Tier, *, most: int | None) -> list[Checkpoint]:
    """The files of a run that wait to be copied to a tier, newest saves first, at most `most` (None: all).

    Leaves out files that are never copied (incomplete ones, those without a digest, parts, and checkpoints of several
    files), files in a tier of its level or a higher one, and files whose copy retention has removed.
    """
    newest_first = (launches.c.launch_order.desc(), saves.c.global_step.desc(), checkpoints.c.rank)
    return list(rows.files(connection.execute(_lacking(run, tier).order_by(*newest_first).limit(most))))


class Tally(NamedTuple):
    """How many copies in one state a tier has, and their bytes."""

    tier: str  # its id
    state: CopyState
    copies: int
    size: int


def tallies(connection: sa.Connection, run: int | None) -> list[Tally]:
    """The copies in each tier, counted by state: those of one run, or of all runs (None)."""
    own = each_copy()
    each = (own if run is None else own.where(launches.c.run_id == run)).subquery().c
    counts = (sa.func.count(), sa.func.coalesce(sa.func.sum(each.size), 0))
    query = sa.select(each.tier_id, each.state, *counts).group_by(each.tier_id, each.state)
    return [Tally(tier, CopyState(state), number, int(size)) for tier, state, number, size in connection.execute(query)]


def each_copy() -> sa.Select[Any]:
    """Selects the run, tier, state and size of each copy, to count them.

    Files with the same content, name and step share a copy: replicas in rank directories, or a file and its record at
    the path before the tree was moved.
    """
    of_copy = (launches.c.run_id, copies.c.tier_id, copies.c.state)
    joined = copies.join(launches, launches.c.id == copies.c.launch_id)
    query = sa.select(*of_copy, sa.func.max(copies.c.size).label("size")).select_from(joined)
    return query.group_by(*of_copy, copies.c.location)


def ranks_in_tiers(connection: sa.Connection, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """The number of ranks that have a ready copy in a tier, by the save's id and the tier's name."""
    found: dict[str, dict[str, int]] = {}
    query = (
        sa.select(checkpoints.c.save_id, tiers.c.name, sa.func.count(checkpoints.c.rank.distinct()))
        .select_from(_IN_TIERS.join(checkpoints, checkpoints.c.id == copies.c.checkpoint_id))
        .where(any_of(checkpoints.c.save_id, "own_ids"), _IS_READY, copies.c.digest == checkpoints.c.digest, IN_USE)
        .group_by(checkpoints.c.save_id, tiers.c.name)
    )
    for save, tier, ranks in connection.execute(query, {"own_ids": list(ids)}) if ids else ():
        found.setdefault(save, {})[tier] = ranks
    return found


class Backlog(NamedTuple):
    """Files that wait to be copied to a tier: how many, their bytes, and when the oldest was recorded."""

    files: int
    size: int
    oldest: datetime | None


def backlog(connection: sa.Connection, run: int, tier: Tier) -> Backlog:
    """The files that `lacking` would return, counted."""
    counts = (
        sa.func.count(),
        sa.func.coalesce(sa.func.sum(checkpoints.c.size), 0),
        sa.func.min(checkpoints.c.created_at),
    )
    count, size, oldest = connection.execute(_lacking(run, tier).with_only_columns(*counts)).one()
    return Backlog(count, int(size), oldest)


def undigested(connection: sa.Connection, run: int) -> int:
    """How many files of a run would be copied to tiers if their digests were recorded."""
    query = rows.FILE_QUERY.where(launches.c.run_id == run, checkpoints.c.digest.is_(None), _may_be_copied(1))
    return int(connection.execute(query.with_only_columns(sa.func.count())).scalar_one())


def only_on_nodes(connection: sa.Connection, run: int) -> tuple[int, int]:
    """How many states of a run have a file that is in no tier beyond the nodes, and how many states there are."""
    of_state = states_by_place().where(launches.c.run_id == run).subquery()
    query = sa.select(sa.func.coalesce(sa.func.sum(of_state.c.lacks), 0), sa.func.count()).select_from(of_state)
    return tuple(connection.execute(query).one())


def runs_in(connection: sa.Connection, tier: Tier) -> list[int]:
    """The ids of the runs that have copies recorded in a tier, in any state."""
    joined = copies.join(launches, launches.c.id == copies.c.launch_id)
    query = sa.select(launches.c.run_id).distinct().select_from(joined).where(copies.c.tier_id == tier.id)
    return sorted(connection.execute(query).scalars())


def _by_file(found: sa.Result[Any]) -> dict[str, tuple[Copy, ...]]:
    known: dict[str, list[Copy]] = {}
    tier_of = cache(Tier)
    for file, name, url, level, key, state, size, digest, at, beside, detail in rows.many(found):
        copy = Copy(
            tier=tier_of(name, url, level),
            key=key,
            state=_STATES[state],
            size=size,
            digest=digest,
            at=at,
            beside=() if beside == "[]" else tuple(Beside(*each) for each in json.loads(beside)),
            detail=detail,
        )
        known.setdefault(file, []).append(copy)
    return {file: nearest_first(some) if len(some) > 1 else (some[0],) for file, some in known.items()}


_STATES = {state.value: state for state in CopyState}
_TIERS = sa.select(tiers)
_OF = sa.select(
    copies.c.checkpoint_id,
    tiers.c.name,
    tiers.c.url,
    tiers.c.level,
    copies.c.location,
    copies.c.state,
    copies.c.size,
    copies.c.digest,
    copies.c.created_at,
    sa.cast(copies.c.beside, sa.Text),  # as text: parsed only if it is not empty
    copies.c.detail,
)
_IN_TIERS = copies.join(tiers, tiers.c.id == copies.c.tier_id)
_OF_FILES = _OF.select_from(_IN_TIERS).where(any_of(copies.c.checkpoint_id, "own_ids"))
_IS_READY = copies.c.state == CopyState.READY.value

IN_USE = sa.or_(tiers.c.declared, tiers.c.version < "1")
"""The tier was not removed. An undeclared tier that another user's journal names counts too: its copies are read."""


def _lacking(run: int, tier: Tier) -> sa.Select[Any]:
    return rows.FILE_QUERY.where(launches.c.run_id == run, is_lacking(tier.id, tier.level))


def is_lacking(tier: sa.ColumnElement[str] | str, level: sa.ColumnElement[int] | int) -> sa.ColumnElement[bool]:
    """Whether a file is to be copied to the tier with this id and level, and the tier has no copy of it."""
    has_one = sa.exists().where(
        copies.c.checkpoint_id == checkpoints.c.id,
        copies.c.tier_id == tier,
        copies.c.digest == checkpoints.c.digest,
        one_of(copies.c.state, *(state.value for state in MADE)),
    )
    return sa.and_(checkpoints.c.digest.is_not(None), _may_be_copied(level), ~has_one)


def _may_be_copied(level: sa.ColumnElement[int] | int) -> sa.ColumnElement[bool]:
    """Whether a file with a digest would be copied to a tier of this level."""
    return sa.and_(
        checkpoints.c.state == FileState.COMPLETE.value,
        checkpoints.c.content != Content.PART.value,
        ~one_of(checkpoints.c.format, *SEVERAL),
        ~_is_in_tier(level),
    )


def _is_in_tier(level: sa.ColumnElement[int] | int) -> sa.ColumnElement[bool]:
    """Whether a file itself is in the directory of a declared tier of this level or a higher one."""
    holder = tiers.alias()
    folder = sa.func.substr(holder.c.url, len(ON_NODE) + 1).concat("/")
    return sa.exists().where(
        holder.c.declared,
        holder.c.level >= level,
        holder.c.url.startswith(ON_NODE),
        sa.func.substr(checkpoints.c.path, 1, sa.func.length(folder)) == folder,
    )


def states_by_place() -> sa.Select[Any]:
    """The run of each state on disk, and `lacks`: 1 if a file of the state is in no tier beyond the nodes, else 0."""
    is_beyond = sa.exists().where(
        copies.c.checkpoint_id == checkpoints.c.id,
        copies.c.digest == checkpoints.c.digest,
        _IS_READY,
        copies.c.tier_id == tiers.c.id,
        tiers.c.level > 0,
        IN_USE,
    )
    is_safe = sa.or_(is_beyond, _is_in_tier(1))
    return (
        sa.select(launches.c.run_id, sa.func.max(sa.case((is_safe, 0), else_=1)).label("lacks"))
        .select_from(FILES_OF_LAUNCHES)
        .where(checkpoints.c.state == FileState.COMPLETE.value, checkpoints.c.content != Content.WEIGHTS.value)
        .group_by(launches.c.run_id, saves.c.launch_id, saves.c.global_step)
    )
