"""What protects the states of a run from retention: pins, tags, and the launches that start from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ckptstore.catalog.tables import launches, leases, resolutions
from ckptstore.catalog.user_events import pinned_steps, tags_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


@dataclass(frozen=True)
class Protection:
    """What protects each state of a run.

    `tags` are by step; `held` and `parents` say which launches start from a state now, and which ever did, by
    launch and step.
    """

    pinned: frozenset[int]
    tags: Mapping[int, tuple[str, ...]]
    held: Mapping[tuple[str, int], tuple[str, ...]]
    parents: Mapping[tuple[str, int], tuple[str, ...]]


def protection_of(connection: sa.Connection, run: int, now: datetime) -> Protection:
    """What protects the states of a run. A lease that ended before `now` holds nothing."""
    held: dict[tuple[str, int], list[str]] = {}
    parents: dict[tuple[str, int], list[str]] = {}
    for parent, step, launch, expires_at in connection.execute(_began(), {"own_run": run}):
        parents.setdefault((parent, step), []).append(launch)
        if expires_at is not None and expires_at > now:
            held.setdefault((parent, step), []).append(launch)
    return Protection(
        pinned=pinned_steps(connection, run),
        tags=tags_of(connection, run),
        held={state: tuple(names) for state, names in held.items()},
        parents={state: tuple(names) for state, names in parents.items()},
    )


@cache
def _began() -> sa.Select[Any]:
    parent_launches = launches.alias()
    return (
        sa.select(parent_launches.c.name, resolutions.c.parent_step, launches.c.name, leases.c.expires_at)
        .select_from(
            resolutions.join(launches, launches.c.id == resolutions.c.launch_id)
            .join(parent_launches, parent_launches.c.id == resolutions.c.parent_launch_id)
            .outerjoin(leases, leases.c.launch_id == launches.c.id)
        )
        .where(launches.c.run_id == sa.bindparam("own_run"))
        .order_by(launches.c.launch_order)
    )
