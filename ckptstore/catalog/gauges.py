"""Counts over many runs: one statement for each count, for any number of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import reads
from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.copies import IN_USE, each_copy, is_lacking, states_by_place
from ckptstore.catalog.tables import (
    FILES,
    FILES_OF_LAUNCHES,
    IS_REMOVED,
    IS_THERE,
    UtcDateTime,
    checkpoints,
    collections,
    endings,
    launches,
    saves,
    sources,
    tiers,
    trash,
)
from ckptstore.core.groups import grouped
from ckptstore.core.model import FileState, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from ckptstore.core.model import LaunchKey


class LastSave(NamedTuple):
    """The seconds that a save took on its slowest rank (None: not measured), and the path of one of its files."""

    seconds: float | None
    path: str


def stored_bytes(connection: sa.Connection, ids: Sequence[int]) -> dict[int, int]:
    """The bytes of the present files of these runs; runs without any are left out."""
    return {run: int(size or 0) for run, size in connection.execute(_STORED, {"own_runs": list(ids)})}


def trash_bytes(connection: sa.Connection, ids: Sequence[int]) -> dict[int, int]:
    """The bytes that these runs have in the trash; runs without any are left out."""
    return {run: int(size) for run, size in connection.execute(_IN_TRASH, {"own_runs": list(ids)})}


def errors_at_end(connection: sa.Connection, keys: Sequence[LaunchKey]) -> dict[str, list[str | None]]:
    """The exceptions that ended training (None: it ended by itself), by launch: one for each rank that recorded it."""
    return grouped(connection.execute(_ERRORS, {"own_launches": list(keys)}))


class NewestSaves(NamedTuple):
    """The ids of the newest saves of a launch, with all others of the same steps; `is_all`: it has no older ones."""

    ids: list[str]
    is_all: bool


def newest_saves(connection: sa.Connection, keys: Sequence[LaunchKey], count: int) -> dict[str, NewestSaves]:
    """The `count` newest saves of each of these launches; launches without saves are left out."""
    found: dict[str, NewestSaves] = {}
    asked = {"own_launches": list(keys), "own_others": count - 1}
    for key, save, lowest in connection.execute(_NEWEST_SAVES, asked):
        found.setdefault(key, NewestSaves([], lowest is None)).ids.append(save)
    return found


def newest_moments(connection: sa.Connection, keys: Sequence[LaunchKey], count: int) -> dict[str, list[datetime]]:
    """When the `count` newest saves of each of these launches were recorded, earliest first."""
    asked = {"own_launches": list(keys), "own_others": count - 1}
    return grouped(connection.execute(_NEWEST_MOMENTS, asked))


class BadState(NamedTuple):
    """A state with damaged files, or a quarantined one: how many files, the path of one of them, and the fault."""

    run_id: int
    run: str
    launch: str
    global_step: int
    files: int
    path: str
    why: str


def damaged_states(connection: sa.Connection, run: int | None = None) -> list[BadState]:
    """The states of a run, or of all runs, with files that differ from their records, by launch and step."""
    return _bad_states(connection, _DAMAGED if run is None else _DAMAGED.where(launches.c.run_id == run))


def quarantined_states(connection: sa.Connection) -> list[BadState]:
    """The states of all runs that are there and quarantined, by launch and step."""
    return _bad_states(connection, _QUARANTINED)


def _bad_states(connection: sa.Connection, query: sa.Select[Any]) -> list[BadState]:
    found = connection.execute(query).all()
    names = reads.names_of_runs(connection) if found else {}  # doctor asks for each run, and most have none
    return [BadState(run, names[run], *rest) for run, *rest in found if run in names]


def last_saves(connection: sa.Connection, ids: Sequence[str]) -> dict[str, LastSave]:
    """The records of these saves, by their ids."""
    found = connection.execute(_LAST_SAVES, {"own_ids": list(ids)}) if ids else ()
    return {save: LastSave(seconds, path) for save, seconds, path in found}


def newest_of_kinds(connection: sa.Connection) -> list[tuple[str, str, datetime]]:
    """When each run last saved, by its name and the kind of save."""
    return _named(connection, _NEWEST_OF_KINDS)


def saving_ranks(connection: sa.Connection) -> dict[str, dict[int, int]]:
    """The ranks of the newest launch of each run that has periodic saves, by the run's name.

    Each has its newest saved step among the last few saves of the launch (-1: it has none of them).
    """
    found: dict[str, dict[int, int]] = {}
    for run, rank, step in _named(connection, _SAVING):
        found.setdefault(run, {})[rank] = step
    return found


def directories(connection: sa.Connection) -> dict[int, set[str]]:
    """The directories that the newest launch of each run saves to, by the run's id."""
    found: dict[int, set[str]] = {}
    for run, directory in connection.execute(_DIRECTORIES):
        found.setdefault(run, set()).add(directory)
    return found


class InTier(NamedTuple):
    """The copies of a run that are in one state, in the tiers of one name: how many, and their bytes."""

    run: str
    tier: str
    state: str
    copies: int
    size: int


class Uncopied(NamedTuple):
    """Files of a run that wait to be copied to a tier: how many, and when the oldest was recorded."""

    run: str
    tier: str
    files: int
    oldest: datetime


def copies_in_tiers(connection: sa.Connection) -> list[InTier]:
    """The copies of all runs in the tiers that are in use."""
    found = _named(connection, _IN_TIERS)
    return [InTier(run, tier, state, number, int(size)) for run, tier, state, number, size in found]


def uncopied_files(connection: sa.Connection) -> list[Uncopied]:
    """The files of all runs that wait to be copied to the tiers beyond the nodes, by run and tier."""
    return [Uncopied(*row) for row in _named(connection, _UNCOPIED)]


def states_only_on_nodes(connection: sa.Connection) -> dict[str, int]:
    """How many states of each run have a file that is in no tier beyond the nodes; runs without states are left out."""
    return {run: int(number) for run, number in _named(connection, _ONLY_ON_NODES)}


def _named(connection: sa.Connection, query: sa.Select[Any]) -> list[Any]:
    """The rows of a query, each with the name of a run in place of its id; those of forgotten runs are left out."""
    names = reads.names_of_runs(connection)
    return [(names[run], *rest) for run, *rest in connection.execute(query) if run in names]


_OF_RUNS = any_of(launches.c.run_id, "own_runs")
_STORED = (
    sa.select(launches.c.run_id, sa.func.sum(checkpoints.c.size))
    .select_from(FILES_OF_LAUNCHES)
    .where(_OF_RUNS, IS_THERE)
    .group_by(launches.c.run_id)
)
_IN_TRASH = (
    sa.select(trash.c.run_id, sa.func.sum(trash.c.size))
    .join(collections, (collections.c.id == trash.c.collection_id) & (collections.c.run_id == trash.c.run_id))
    .where(any_of(trash.c.run_id, "own_runs"), IS_REMOVED)
    .group_by(trash.c.run_id)
)
_ERRORS = (
    sa.select(endings.c.launch_id, endings.c.error)
    .where(any_of(endings.c.launch_id, "own_launches"))
    .order_by(endings.c.launch_id, endings.c.rank)
)
_EVERY = saves.alias("every")
_LOWEST = (
    sa.select(
        launches.c.id,
        # The step of the oldest save that is asked for, found by the index on launch and step.
        sa.select(_EVERY.c.global_step)
        .where(_EVERY.c.launch_id == launches.c.id)
        .order_by(_EVERY.c.global_step.desc())
        .limit(1)
        .offset(sa.bindparam("own_others", type_=sa.Integer))
        .correlate(launches)
        .scalar_subquery()
        .label("step"),
    )
    .where(any_of(launches.c.id, "own_launches"))
    .cte("lowest")
    .prefix_with("MATERIALIZED")  # else PostgreSQL computes it again for each save
)
_NEWEST_SAVES = sa.select(saves.c.launch_id, saves.c.id, _LOWEST.c.step).join(
    _LOWEST,
    (_LOWEST.c.id == saves.c.launch_id) & (saves.c.global_step >= sa.func.coalesce(_LOWEST.c.step, 0)),
)
_NEWEST_MOMENTS = _NEWEST_SAVES.with_only_columns(saves.c.launch_id, saves.c.created_at).order_by(saves.c.created_at)
_STATE = (launches.c.run_id, launches.c.name, saves.c.global_step)
_DAMAGED = (
    sa.select(
        *_STATE,
        sa.func.count(),
        sa.func.min(checkpoints.c.path),
        sa.func.coalesce(sa.func.min(checkpoints.c.problem), ""),
    )
    .select_from(FILES_OF_LAUNCHES)
    .where(checkpoints.c.state == FileState.DAMAGED.value)
    .group_by(*_STATE)
)
_QUARANTINED = (
    sa.select(*_STATE, sa.func.count(), sa.func.min(checkpoints.c.path), sa.func.min(checkpoints.c.quarantine))
    .select_from(FILES_OF_LAUNCHES)
    .where(checkpoints.c.quarantine.is_not(None), checkpoints.c.state == FileState.COMPLETE.value)
    .group_by(*_STATE)
)
_TOOK = sa.func.coalesce(checkpoints.c.written_after, checkpoints.c.pause)
_LAST_SAVES = (
    sa.select(saves.c.id, sa.func.max(_TOOK), sa.func.min(checkpoints.c.path))
    .select_from(FILES)
    .where(any_of(saves.c.id, "own_ids"))
    .group_by(saves.c.id)
)
_NEWEST_OF_KINDS = (
    sa.select(launches.c.run_id, saves.c.kind, sa.func.max(saves.c.created_at, type_=UtcDateTime))
    .select_from(saves.join(launches))
    .group_by(launches.c.run_id, saves.c.kind)
    .order_by(launches.c.run_id, saves.c.kind)
)
_PERIODIC = saves.c.kind == Kind.PERIODIC.value
_NEWEST_FIRST = sa.func.row_number().over(partition_by=launches.c.run_id, order_by=launches.c.launch_order.desc())
_LAUNCHES = sa.select(launches.c.id, launches.c.run_id, _NEWEST_FIRST.label("place"))
_NEWEST_LAUNCHES = _LAUNCHES.subquery("newest")
_NEWEST_SAVING = _LAUNCHES.where(sa.exists().where(saves.c.launch_id == launches.c.id, _PERIODIC)).subquery("newest")
_FEW = 5
_LOWEST_OF_FEW = (
    sa.select(_EVERY.c.global_step)
    .where(_EVERY.c.launch_id == _NEWEST_SAVING.c.id, _EVERY.c.kind == Kind.PERIODIC.value)
    .order_by(_EVERY.c.global_step.desc())
    .limit(1)
    .offset(_FEW - 1)
    .scalar_subquery()
)
_SAVED_STEPS = (
    sa.select(_NEWEST_SAVING.c.run_id, checkpoints.c.rank, saves.c.global_step)
    .select_from(_NEWEST_SAVING.join(saves, saves.c.launch_id == _NEWEST_SAVING.c.id).join(checkpoints))
    .where(_NEWEST_SAVING.c.place == 1, _PERIODIC, saves.c.global_step >= sa.func.coalesce(_LOWEST_OF_FEW, 0))
    .where(checkpoints.c.state != FileState.MOVED.value)
)
_ANNOUNCED = (
    sa.select(_NEWEST_SAVING.c.run_id, sources.c.rank, sa.literal(-1))
    .join(sources, sources.c.launch_id == _NEWEST_SAVING.c.id)
    .where(_NEWEST_SAVING.c.place == 1, sources.c.kind == Kind.PERIODIC.value)
)
_STEPS = sa.union_all(_SAVED_STEPS, _ANNOUNCED).subquery("steps")
_SAVING = sa.select(_STEPS.c.run_id, _STEPS.c.rank, sa.func.max(_STEPS.c.global_step)).group_by(
    _STEPS.c.run_id, _STEPS.c.rank
)
_DIRECTORIES = (
    sa.select(_NEWEST_LAUNCHES.c.run_id, sources.c.directory)
    .distinct()
    .join(sources, sources.c.launch_id == _NEWEST_LAUNCHES.c.id)
    .where(_NEWEST_LAUNCHES.c.place == 1)
)
_COPY = each_copy().subquery()
_IN_TIERS = (
    sa.select(
        _COPY.c.run_id, tiers.c.name, _COPY.c.state, sa.func.count(), sa.func.coalesce(sa.func.sum(_COPY.c.size), 0)
    )
    .join(tiers, tiers.c.id == _COPY.c.tier_id)
    .where(IN_USE)
    .group_by(_COPY.c.run_id, tiers.c.name, _COPY.c.state)
)
_UNCOPIED = (
    sa.select(
        launches.c.run_id, tiers.c.name, sa.func.count(), sa.func.min(checkpoints.c.created_at, type_=UtcDateTime)
    )
    .select_from(FILES_OF_LAUNCHES.join(tiers, tiers.c.declared & (tiers.c.level > 0)))
    .where(is_lacking(tiers.c.id, tiers.c.level))
    .group_by(launches.c.run_id, tiers.c.name)
)
_OF_STATES = states_by_place().subquery()
_ONLY_ON_NODES = sa.select(_OF_STATES.c.run_id, sa.func.sum(_OF_STATES.c.lacks)).group_by(_OF_STATES.c.run_id)
