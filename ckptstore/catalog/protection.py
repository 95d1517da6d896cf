"""Reads what protects the states of a run from retention: pins, tags, launches that start from them, other runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog import reads, tallies
from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.tables import launches, leases, resolutions
from ckptstore.catalog.user_events import pinned_steps, tags_of
from ckptstore.core.model import Initial, initial_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


@dataclass(frozen=True)
class Protection:
    """What protects each state of a run.

    - `pinned`: steps. `tags`: the tags of each step. The others are by the launch and step of the state:
    - `held`: the launches that start from it now. `parents`: the launches that ever started from it.
    - `needed`: the other runs that began from it and have no state of their own yet.
    """

    pinned: frozenset[int]
    tags: Mapping[int, tuple[str, ...]]
    held: Mapping[tuple[str, int], tuple[str, ...]]
    parents: Mapping[tuple[str, int], tuple[str, ...]]
    needed: Mapping[tuple[str, int], tuple[str, ...]]


def protection_of(connection: sa.Connection, run: int, now: datetime) -> Protection:
    """What protects the states of a run. A lease that ended before `now` holds nothing."""
    parent_launches = launches.alias()
    began = (
        sa.select(parent_launches.c.name, resolutions.c.parent_step, launches.c.name, leases.c.expires_at)
        .select_from(
            resolutions.join(launches, launches.c.id == resolutions.c.launch_id)
            .join(parent_launches, parent_launches.c.id == resolutions.c.parent_launch_id)
            .outerjoin(leases, leases.c.launch_id == launches.c.id)
        )
        .where(launches.c.run_id == run)
        .order_by(launches.c.launch_order)
    )
    held: dict[tuple[str, int], list[str]] = {}
    parents: dict[tuple[str, int], list[str]] = {}
    for parent, step, launch, expires_at in connection.execute(began):
        parents.setdefault((parent, step), []).append(launch)
        if expires_at is not None and expires_at > now:
            held.setdefault((parent, step), []).append(launch)
    return Protection(
        pinned=pinned_steps(connection, run),
        tags=tags_of(connection, run),
        held={state: tuple(names) for state, names in held.items()},
        parents={state: tuple(names) for state, names in parents.items()},
        needed=_needed(connection, run),
    )


def began_from(connection: sa.Connection, ids: Sequence[int]) -> dict[tuple[int, str, int], tuple[str, ...]]:
    """The names of the runs that ever began from a state of these runs, by the state's run, launch and step.

    Forgotten runs are left out.
    """
    begun = _initials(connection, ids)
    names = reads.names_of_runs(connection) if begun else {}
    found: dict[tuple[int, str, int], dict[str, None]] = {}
    for run, initial, child in begun:
        if child in names:
            found.setdefault((run, *initial[1:3]), {})[names[child]] = None
    return {state: tuple(children) for state, children in found.items()}


def _needed(connection: sa.Connection, run: int) -> dict[tuple[str, int], tuple[str, ...]]:
    """The runs that began from a state of this run and have none of their own yet, by the state's launch and step."""
    begun = [told[1:] for told in _initials(connection, [run])]
    names = reads.names_of_runs(connection) if begun else {}
    found: dict[tuple[str, int], list[str]] = {}
    for child in dict.fromkeys(child for _, child in begun if child in names):
        initial = initial_of(reads.launches_of(connection, child))
        if initial is not None and (initial, child) in begun and not _has_own_state(connection, child):
            found.setdefault(initial[1:3], []).append(names[child])
    return {state: tuple(children) for state, children in found.items()}


def _has_own_state(connection: sa.Connection, run: int) -> bool:
    """Whether a run has had a whole state of its own since its newest `branched` launch: then it needs no other."""
    launches_of_run = reads.launches_of(connection, run)
    anew = max((each.order for each in launches_of_run if each.branched), default=0)
    return any(tallies.has_been_whole(connection, each) for each in launches_of_run if each.order >= anew)


def _initials(connection: sa.Connection, ids: Sequence[int]) -> list[tuple[int, Initial, int]]:
    """The states of these runs that launches of any run began from: the state's run, the state, the launch's run."""
    found = connection.execute(_INITIALS, {"own_runs": list(ids)})
    return [(run, Initial(*told), child) for run, told, child in found]


_SAVED_BY = launches.alias("saved_by")
_INITIALS = (
    sa.select(_SAVED_BY.c.run_id, resolutions.c.initial, launches.c.run_id)
    .select_from(
        resolutions.join(launches, launches.c.id == resolutions.c.launch_id).join(
            _SAVED_BY, _SAVED_BY.c.id == resolutions.c.initial_launch_id
        )
    )
    .where(any_of(_SAVED_BY.c.run_id, "own_runs"))
    .order_by(launches.c.run_id, launches.c.launch_order)
)
