"""What protects states from retention: pins, tags, leases of launches; and the policy that is stored for a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ckptstore.catalog.among import among
from ckptstore.catalog.replay import POLICY, TAG, put_removal
from ckptstore.catalog.tables import checkpoints, launches, leases, pins, policies, resolutions, runs, saves, tags
from ckptstore.core.model import FileState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from ckptstore.core.model import Checkpoint


@dataclass(frozen=True)
class Marks:
    """What people and launches say of the states of a run.

    `tags` are by step; `held` and `parents` say which launches start from a state now, and which ever did, by
    launch and step.
    """

    pinned: frozenset[int]
    tags: Mapping[int, tuple[str, ...]]
    held: Mapping[tuple[str, int], tuple[str, ...]]
    parents: Mapping[tuple[str, int], tuple[str, ...]]


def marks_of(connection: sa.Connection, run: int, now: datetime) -> Marks:
    """The marks on the states of a run. A lease that ended before `now` holds nothing."""
    pinned = connection.execute(sa.select(pins.c.global_step).where(pins.c.run_id == run)).scalars()
    began = (
        sa.select(resolutions.c.parent_launch_id, resolutions.c.parent_step, launches.c.id, leases.c.expires_at)
        .select_from(resolutions.join(launches, launches.c.id == resolutions.c.launch_id).outerjoin(leases))
        .where(launches.c.run_id == run, resolutions.c.parent_launch_id.is_not(None))
        .order_by(launches.c.launch_order)
    )
    held: dict[tuple[str, int], list[str]] = {}
    parents: dict[tuple[str, int], list[str]] = {}
    for parent, step, launch, expires_at in connection.execute(began):
        parents.setdefault((parent, step), []).append(launch)
        if expires_at is not None and expires_at > now:
            held.setdefault((parent, step), []).append(launch)
    return Marks(
        pinned=frozenset(pinned),
        tags=tags_of(connection, run),
        held={state: tuple(names) for state, names in held.items()},
        parents={state: tuple(names) for state, names in parents.items()},
    )


def tags_of(connection: sa.Connection, run: int) -> dict[int, tuple[str, ...]]:
    """The names that people gave to steps of a run, by step."""
    found: dict[int, list[str]] = {}
    named = sa.select(tags.c.global_step, tags.c.name).where(tags.c.run_id == run).order_by(tags.c.name)
    for step, name in connection.execute(named):
        found.setdefault(step, []).append(name)
    return {step: tuple(names) for step, names in found.items()}


def hold(connection: sa.Connection, launch_id: str, until: datetime) -> None:
    """Let a launch hold the state that it starts from until then."""
    chosen = leases.c.launch_id == launch_id
    if connection.execute(leases.update().where(chosen).values(expires_at=until)).rowcount == 0:
        connection.execute(leases.insert().values(launch_id=launch_id, expires_at=until))


def are_as_chosen(connection: sa.Connection, files: Iterable[Checkpoint]) -> bool:
    """Whether the catalog takes each of these files for what it did when they were read."""
    chosen = {file.id: file.state.value for file in files}
    query = sa.select(checkpoints.c.id, checkpoints.c.state).where(among(connection, checkpoints.c.id, chosen))
    return {row[0]: row[1] for row in connection.execute(query)} == chosen


def tag_step(connection: sa.Connection, run: int, name: str) -> int | None:
    """The step that a tag of a run is on; None if there is no such tag."""
    chosen = (tags.c.run_id == run) & (tags.c.name == name)
    return connection.execute(sa.select(tags.c.global_step).where(chosen)).scalar()


def add_tag(connection: sa.Connection, run: int, name: str, global_step: int, now: datetime) -> None:
    """Put a new tag on a step of a run."""
    connection.execute(tags.insert().values(run_id=run, name=name, global_step=global_step, created_at=now))


def remove_tag(connection: sa.Connection, run: int, name: str, now: datetime) -> bool:
    """Take a tag away; whether there was one."""
    chosen = (tags.c.run_id == run) & (tags.c.name == name)
    had = connection.execute(tags.delete().where(chosen)).rowcount > 0
    if had:
        put_removal(connection, run, TAG, name, now)
    return had


def policy_of(connection: sa.Connection, run: int) -> dict[str, Any] | None:
    """The rules that are stored for a run; None if there are none."""
    found: dict[str, Any] | None = connection.execute(
        sa.select(policies.c.rules).where(policies.c.run_id == run)
    ).scalar()
    return found


def set_policy(connection: sa.Connection, run: int, rules: Mapping[str, Any] | None, now: datetime) -> bool:
    """Store the rules of a run, or take them away (None); whether there were some before."""
    had = connection.execute(policies.delete().where(policies.c.run_id == run)).rowcount > 0
    if rules is not None:
        connection.execute(policies.insert().values(run_id=run, rules=dict(rules), created_at=now))
    elif had:
        put_removal(connection, run, POLICY, "", now)
    return had


def files_to_tell(connection: sa.Connection, run: int) -> dict[str, str]:
    """Files of a run beside which can be journalled what is said of it, by path, and their launches.

    Those of the newest step that has any; where nothing is left, the first by path of all that ever were.
    """
    joined = checkpoints.join(saves).join(launches, launches.c.id == saves.c.launch_id)
    query = sa.select(checkpoints.c.path, launches.c.id).select_from(joined).where(launches.c.run_id == run)
    there = query.where(checkpoints.c.state == FileState.COMPLETE.value)
    newest = there.with_only_columns(sa.func.max(saves.c.global_step)).scalar_subquery()
    found = connection.execute(there.where(saves.c.global_step == newest)).all()
    found = found or connection.execute(query.order_by(checkpoints.c.path).limit(1)).all()
    return {row[0]: row[1] for row in found}


def runs_with_policy(connection: sa.Connection) -> Sequence[str]:
    """The names of the runs that have a policy."""
    query = sa.select(runs.c.name).join(policies, policies.c.run_id == runs.c.id).order_by(runs.c.name)
    return list(connection.execute(query).scalars())
