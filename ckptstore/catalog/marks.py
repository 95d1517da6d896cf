"""What protects states from retention: pins, tags, leases of launches; and the policy that is stored for a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import sqlalchemy as sa

from ckptstore.catalog import reads, rows
from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.tables import (
    checkpoints,
    forgotten,
    launches,
    leases,
    pins,
    policies,
    renamed,
    resolutions,
    runs,
    saves,
    tags,
)
from ckptstore.core.events import (
    Mark,
    PolicySet,
    RunForgotten,
    RunRenamed,
    StepPinned,
    StepTagged,
    moment_of,
    version_of_mark,
)
from ckptstore.core.limits import LEASE
from ckptstore.core.model import FileState
from ckptstore.outside import utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ckptstore.core.model import Checkpoint, LaunchKey


TABLES: dict[type[Mark], sa.Table] = {
    StepPinned: pins,
    StepTagged: tags,
    PolicySet: policies,
    RunRenamed: renamed,
    RunForgotten: forgotten,
}
"""Where the newest of each is: its fields are columns, and the table's key is what it is said of."""

Said = TypeVar("Said", StepPinned, StepTagged, PolicySet, RunRenamed, RunForgotten)


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
    held: dict[tuple[str, int], list[str]] = {}
    parents: dict[tuple[str, int], list[str]] = {}
    for parent, step, launch, expires_at in connection.execute(_began(), {"own_run": run}):
        parents.setdefault((parent, step), []).append(launch)
        if expires_at is not None and expires_at > now:
            held.setdefault((parent, step), []).append(launch)
    return Marks(
        pinned=pinned_steps(connection, run),
        tags=tags_of(connection, run),
        held={state: tuple(names) for state, names in held.items()},
        parents={state: tuple(names) for state, names in parents.items()},
    )


def pinned_steps(connection: sa.Connection, run: int) -> frozenset[int]:
    """The steps of a run that are pinned."""
    return frozenset(connection.execute(_PINNED, {"own_run": run}).scalars())


def tags_of(connection: sa.Connection, run: int) -> dict[int, tuple[str, ...]]:
    """The names that people gave to steps of a run, by step."""
    found: dict[int, list[str]] = {}
    for step, name in connection.execute(_TAGS_OF, {"own_run": run}):
        found.setdefault(step, []).append(name)
    return {step: tuple(names) for step, names in found.items()}


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


class Sign(NamedTuple):
    """The newest sign of life of a launch: when it was given, by the clock of the database, and by which process."""

    key: LaunchKey
    launch: str
    process: str
    seen_at: datetime


def hold(connection: sa.Connection, key: LaunchKey, until: datetime) -> None:
    """Let a launch hold the state that it starts from until then."""
    _put_lease(connection, key, expires_at=until)


def give_sign(connection: sa.Connection, key: LaunchKey, process: str, now: datetime) -> None:
    """A launch is alive, and holds the state that it starts from."""
    _put_lease(connection, key, expires_at=now + LEASE, process=process, seen_at=now)


def end_signs(connection: sa.Connection, key: LaunchKey) -> None:
    """A launch has ended, or rests: nobody needs to wait for its signs of life."""
    connection.execute(_SET_LEASE, {"own_launch": key, "process": None})


def last_sign(connection: sa.Connection, run: int) -> Sign | None:
    """The sign of life of the newest launch of a run that gives some; None if none does."""
    row = connection.execute(_LAST_SIGN, {"own_run": run}).one_or_none()
    return None if row is None else Sign(*row)


def signs_of(connection: sa.Connection, run: int) -> dict[str, tuple[str | None, datetime]]:
    """The last sign of life of each launch of a run that ever gave one: its process (None: it has ended), and when."""
    query = sa.select(launches.c.name, leases.c.process, leases.c.seen_at)
    query = query.join(launches, launches.c.id == leases.c.launch_id)
    chosen = query.where(launches.c.run_id == run, leases.c.seen_at.is_not(None))
    return {name: (process, seen_at) for name, process, seen_at in connection.execute(chosen)}


def _put_lease(connection: sa.Connection, key: LaunchKey, **values: object) -> None:
    if connection.execute(_SET_LEASE, {"own_launch": key, **values}).rowcount == 0:
        connection.execute(_ADD_LEASE, {"launch_id": key, **values})


def hold_if_new(connection: sa.Connection, key: LaunchKey, until: datetime) -> None:
    """Let a launch hold the state that it starts from until then; a lease that is there is left as it is."""
    if connection.execute(_LEASE, {"own_launch": key}).first() is None:
        connection.execute(_ADD_LEASE, {"launch_id": key, "expires_at": until})


_PINNED = sa.select(pins.c.global_step).where(pins.c.run_id == sa.bindparam("own_run"), pins.c.pinned)
_TAGS_OF = (
    sa.select(tags.c.global_step, tags.c.name)
    .where(tags.c.run_id == sa.bindparam("own_run"), tags.c.global_step.is_not(None))
    .order_by(tags.c.name)
)
_LAST_SIGN = (
    sa.select(launches.c.id, launches.c.name, leases.c.process, leases.c.seen_at)
    .join(launches, launches.c.id == leases.c.launch_id)
    .where(launches.c.run_id == sa.bindparam("own_run"), leases.c.process.is_not(None))
    .order_by(launches.c.launch_order.desc())
    .limit(1)
)
_STATES_OF = sa.select(checkpoints.c.id, checkpoints.c.state).where(any_of(checkpoints.c.id, "own_ids"))
_OF_LAUNCH = leases.c.launch_id == sa.bindparam("own_launch")
_LEASE, _SET_LEASE = sa.select(leases.c.launch_id).where(_OF_LAUNCH), leases.update().where(_OF_LAUNCH)
_ADD_LEASE = leases.insert()


def said_now(connection: sa.Connection, mark: Callable[..., Said], *said: object) -> Said:
    """The event of a mark that is made now, or just after the last of its kind: clocks may have gone back since."""
    event = mark(*said, utc_now())
    version = _version_known(connection, event)
    return (
        event if version is None else replace(event, at=max(event.at, moment_of(version) + timedelta(microseconds=1)))
    )


def are_as_chosen(connection: sa.Connection, files: Iterable[Checkpoint]) -> bool:
    """Whether the catalog takes each of these files for what it did when they were read."""
    chosen = {file.id: file.state.value for file in files}
    return {row[0]: row[1] for row in connection.execute(_STATES_OF, {"own_ids": list(chosen)})} == chosen


def has(connection: sa.Connection, event: Mark) -> bool:
    """Whether the catalog knows what an event says of a mark, or newer; one that it never had is not missed."""
    known = _version_known(connection, event)
    if known is None:
        return isinstance(event, StepPinned | StepTagged)
    return bool(known >= version_of_mark(event))


def _version_known(connection: sa.Connection, event: Mark) -> str | None:
    asked = {f"own_{name}": said for name, said in vars(event).items()}
    return connection.execute(_version_of(TABLES[type(event)]), asked).scalar()


@cache
def _version_of(table: sa.Table) -> sa.Select[Any]:
    of_run = sa.select(runs.c.id).where(runs.c.name == sa.bindparam("own_run")).scalar_subquery()
    of_it = (column == sa.bindparam(f"own_{column.name}") for column in table.primary_key if column.name != "run_id")
    return sa.select(table.c.version).where(table.c.run_id == of_run, *of_it)


def tag_step(connection: sa.Connection, run: int, name: str) -> int | None:
    """The step that a tag of a run is on; None if there is no such tag."""
    chosen = (tags.c.run_id == run) & (tags.c.name == name)
    return connection.execute(sa.select(tags.c.global_step).where(chosen)).scalar()


def policy_of(connection: sa.Connection, run: int) -> dict[str, Any] | None:
    """The rules that are stored for a run; None if there are none."""
    found: dict[str, Any] | None = connection.execute(
        sa.select(policies.c.rules).where(policies.c.run_id == run)
    ).scalar()
    return found


def files_to_tell(connection: sa.Connection, run: int) -> list[Checkpoint]:
    """Files of a run beside which can be journalled what is said of it.

    Those of the newest step that has any; where nothing is left, the first by path of all that ever were.
    """
    of_newest, any_other = _files_to_tell()
    found = list(rows.files(connection.execute(of_newest, {"own_run": run})))
    return found or list(rows.files(connection.execute(any_other, {"own_run": run})))


@cache
def _files_to_tell() -> tuple[sa.Select[Any], sa.Select[Any]]:
    query = rows.file_query().where(launches.c.run_id == sa.bindparam("own_run"))
    there = query.where(checkpoints.c.state == FileState.COMPLETE.value)
    newest = there.with_only_columns(sa.func.max(saves.c.global_step)).scalar_subquery()
    return there.where(saves.c.global_step == newest), query.order_by(checkpoints.c.path).limit(1)


def runs_with_policy(connection: sa.Connection) -> Sequence[str]:
    """The names of the runs that have a policy, but for those that were forgotten."""
    with_policy = set(connection.execute(sa.select(policies.c.run_id).where(policies.c.rules.is_not(None))).scalars())
    return sorted(name for run, name in reads.names_of_runs(connection).items() if run in with_policy)
