"""The newest statements of users about a run: pins, tags, the stored policy, its new name, whether it is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from ckptstore.catalog import reads, rows
from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.tables import checkpoints, forgotten, launches, pins, policies, renamed, runs, saves, tags
from ckptstore.core.events import (
    PolicySet,
    RunForgotten,
    RunRenamed,
    StepPinned,
    StepTagged,
    UserEvent,
    later,
    moment_of,
    version_of_user_event,
)
from ckptstore.core.groups import grouped
from ckptstore.core.model import FileState
from ckptstore.outside import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from ckptstore.core.model import Checkpoint


TABLES: dict[type[UserEvent], sa.Table] = {
    StepPinned: pins,
    StepTagged: tags,
    PolicySet: policies,
    RunRenamed: renamed,
    RunForgotten: forgotten,
}
"""The table for each type of event: one row for each subject, with the newest event's fields as columns."""

Said = TypeVar("Said", StepPinned, StepTagged, PolicySet, RunRenamed, RunForgotten)


def said_now(connection: sa.Connection, kind: Callable[..., Said], *said: object) -> Said:
    """An event at this moment, or just after the last event about its subject if a clock was set back since."""
    event = kind(*said, utc_now())
    version = _known(connection, event, "version")
    return replace(event, at=later(event.at, moment_of(version) if version else None))


def has(connection: sa.Connection, event: UserEvent) -> bool:
    """Whether the catalog has this event, a newer one, or the same policy.

    True for a pin or tag that it never had any event about.
    """
    if isinstance(event, PolicySet) and event.rules == _known(connection, event, "rules"):
        return True
    known = _known(connection, event, "version")
    if known is None:
        return isinstance(event, StepPinned | StepTagged)
    return bool(known >= version_of_user_event(event))


def _known(connection: sa.Connection, event: UserEvent, column: str) -> Any:
    table = TABLES[type(event)]
    of_run = sa.select(runs.c.id).where(runs.c.name == event.run).scalar_subquery()
    of_it = (key == getattr(event, key.name) for key in table.primary_key if key.name != "run_id")
    return connection.execute(sa.select(table.c[column]).where(table.c.run_id == of_run, *of_it)).scalar()


def pinned_steps(connection: sa.Connection, run: int) -> frozenset[int]:
    """The steps of a run that are pinned."""
    return frozenset(step for _, step in pins_of_runs(connection, [run]))


def tags_of(connection: sa.Connection, run: int) -> dict[int, tuple[str, ...]]:
    """The names that people gave to steps of a run, by step."""
    return {step: names for (_, step), names in tags_of_runs(connection, [run]).items()}


def pins_of_runs(connection: sa.Connection, ids: Sequence[int]) -> set[tuple[int, int]]:
    """The pinned steps of these runs, as (run, step)."""
    return {(run, step) for run, step in connection.execute(_PINS_OF_RUNS, {"own_runs": list(ids)})}


def tags_of_runs(connection: sa.Connection, ids: Sequence[int]) -> dict[tuple[int, int], tuple[str, ...]]:
    """The names that people gave to steps of these runs, by run and step."""
    found = connection.execute(_TAGS_OF_RUNS, {"own_runs": list(ids)})
    of_states = grouped(((run, step), name) for run, step, name in found)
    return {place: tuple(names) for place, names in of_states.items()}


def tag_step(connection: sa.Connection, run: int, name: str) -> int | None:
    """The step that a tag of a run is on; None if there is no such tag."""
    chosen = (tags.c.run_id == run) & (tags.c.name == name)
    return connection.execute(sa.select(tags.c.global_step).where(chosen)).scalar()


def tagged_at(connection: sa.Connection, run: int, name: str) -> datetime | None:
    """The moment at which a tag of a run was set, or removed; None if there never was one."""
    chosen = (tags.c.run_id == run) & (tags.c.name == name)
    version = connection.execute(sa.select(tags.c.version).where(chosen)).scalar()
    return None if version is None else moment_of(version)


def policy_of(connection: sa.Connection, run: int) -> dict[str, Any] | None:
    """The rules that are stored for a run; None if there are none."""
    found: dict[str, Any] | None = connection.execute(
        sa.select(policies.c.rules).where(policies.c.run_id == run)
    ).scalar()
    return found


def runs_with_policy(connection: sa.Connection) -> Sequence[str]:
    """The names of the runs that have a policy; forgotten runs are left out."""
    with_policy = set(connection.execute(sa.select(policies.c.run_id).where(policies.c.rules.is_not(None))).scalars())
    return sorted(name for run, name in reads.names_of_runs(connection).items() if run in with_policy)


def files_to_tell(connection: sa.Connection, run: int) -> list[Checkpoint]:
    """Files of a run beside which statements about it can be journalled.

    Those of the newest step that has any. If no file is left: the first, by path, of all that were ever recorded.
    """
    query = rows.FILE_QUERY.where(launches.c.run_id == run)
    there = query.where(checkpoints.c.state == FileState.COMPLETE.value)
    newest = there.with_only_columns(sa.func.max(saves.c.global_step)).scalar_subquery()
    found = list(rows.files(connection.execute(there.where(saves.c.global_step == newest))))
    return found or list(rows.files(connection.execute(query.order_by(checkpoints.c.path).limit(1))))


_PINS_OF_RUNS = sa.select(pins.c.run_id, pins.c.global_step).where(any_of(pins.c.run_id, "own_runs"), pins.c.pinned)
_TAGS_OF_RUNS = (
    sa.select(tags.c.run_id, tags.c.global_step, tags.c.name)
    .where(any_of(tags.c.run_id, "own_runs"), tags.c.global_step.is_not(None))
    .order_by(tags.c.name)
)
