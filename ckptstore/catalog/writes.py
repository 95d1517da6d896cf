"""What changes the catalog. Each takes a connection inside a transaction, and never commits."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ckptstore.catalog import at_path
from ckptstore.catalog.among import among
from ckptstore.catalog.given_up import state_but_trashed
from ckptstore.catalog.tables import checkpoints, endings, launches, outcomes, pins, resolutions, runs, saves, sources
from ckptstore.core.model import FileState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from ckptstore.core.model import Checkpoint, Content, Kind, Outcome, Rule
    from ckptstore.core.replicas import Layout


def add_run(connection: sa.Connection, name: str, now: datetime) -> int:
    """The id of the run of that name, which is made if it is new."""
    insert_if_new(connection, runs, {"name": name, "created_at": now})
    found: int = connection.execute(sa.select(runs.c.id).where(runs.c.name == name)).scalar_one()
    return found


def lock_run(connection: sa.Connection, run_id: int) -> None:
    """Let nobody else who locks this run go on before the transaction has ended. SQLite's are one at a time anyway."""
    connection.execute(sa.select(runs.c.id).where(runs.c.id == run_id).with_for_update())


def add_launch(
    connection: sa.Connection, *, run_id: int, launch_id: str, world_size: int, layout: Layout, now: datetime
) -> None:
    """Add a launch as the newest of its run, unless another rank has added it already."""
    lock_run(connection, run_id)  # launches are numbered
    newest = sa.select(sa.func.max(launches.c.launch_order)).where(launches.c.run_id == run_id)
    order = (connection.execute(newest).scalar() or 0) + 1
    row = {
        "id": launch_id,
        "run_id": run_id,
        "launch_order": order,
        "world_size": world_size,
        "layout": layout.to_json(),
        "created_at": now,
    }
    insert_if_new(connection, launches, row)


def order_launches(connection: sa.Connection, ids: Sequence[str]) -> None:
    """Number the launches of a run from 1, in this order: `ids` names all of them."""
    for place, launch_id in enumerate(ids, 1):  # first out of the way: a number is never used twice
        connection.execute(launches.update().where(launches.c.id == launch_id).values(launch_order=-place))
    for place, launch_id in enumerate(ids, 1):
        connection.execute(launches.update().where(launches.c.id == launch_id).values(launch_order=place))


def adopt_checkpoints(connection: sa.Connection, files: Sequence[Checkpoint], now: datetime) -> None:
    """Write many new records at once; of those that are there already no more than an earlier moment."""
    if not files:
        return
    put_saves(connection, files, now)
    rows = [row_of(file, now) for file in sorted(files, key=lambda file: file.id)]
    connection.execute(_found_file(connection.dialect.name), rows)


def set_first_moments(connection: sa.Connection, files: Sequence[Checkpoint], now: datetime) -> None:
    """Give records that are there, and their saves, the moments of these where those are earlier, and nothing else."""
    if files:
        of_saves = sorted((file.save_id, file.created_at or now) for file in files)
        of_files = sorted((file.id, file.created_at or now) for file in files)
        connection.execute(_FIRST_OF_SAVE, [{"own_id": save, "own_moment": at} for save, at in of_saves])
        connection.execute(_FIRST_OF_FILE, [{"own_id": file, "own_moment": at} for file, at in of_files])


def set_world_size(connection: sa.Connection, launch_id: str, world_size: int) -> None:
    """Correct how many ranks a launch had."""
    connection.execute(launches.update().where(launches.c.id == launch_id).values(world_size=world_size))


def set_steps_per_epoch(
    connection: sa.Connection, launch_id: str, steps: int, *, batch_size: int | None = None, shards: int | None = None
) -> None:
    """Record how many steps an epoch of this launch has, and what a step takes of the data, where that is known."""
    values = {"steps_per_epoch": steps, "batch_size": batch_size, "shards": shards}
    connection.execute(launches.update().where(launches.c.id == launch_id).values(values))


def store_resolution(
    connection: sa.Connection,
    *,
    launch_id: str,
    parent: tuple[str, int] | None,
    start_step: int | None,
    files: Sequence[tuple[int, str]],
    branched: bool,
    now: datetime,
) -> None:
    """Store where a launch starts: (rank, checkpoint id) for each rank. The first one stored wins.

    `start_step` is where the parent's step stands in the launch's own steps; `branched`: that state was asked for, and
    what came after it is given up.
    """
    row = {
        "launch_id": launch_id,
        "parent_launch_id": parent[0] if parent else None,
        "parent_step": parent[1] if parent else None,
        "branched": branched,
        "start_step": start_step,
        "plan": [list(pair) for pair in files],
        "created_at": now,
    }
    insert_if_new(connection, resolutions, row)


def record_checkpoints(connection: sa.Connection, files: Sequence[Checkpoint], now: datetime) -> None:
    """Write these files' records; one that is there already is brought up to date.

    A path holds one file: what was recorded of it before, under another step, is gone. What retention has given up is
    its own to say, until another file is at the path.
    """
    if not files:
        return
    put_saves(connection, files, now)
    dialect = connection.dialect.name
    ordered = sorted(files, key=lambda file: file.id)  # in one order everywhere: two ranks must not wait for each other
    begun = [row_of(file, now) for file in ordered if file.state is FileState.IN_PROGRESS]
    known = [row_of(file, now) for file in ordered if file.state is not FileState.IN_PROGRESS]
    if begun:
        connection.execute(_new_file(dialect), begun)
    if known:
        connection.execute(_file(dialect), known)
    at_path.settle(connection, ordered)


def put_saves(connection: sa.Connection, files: Sequence[Checkpoint], now: datetime) -> None:
    """Write the saves that these files are part of; whichever rank comes first, a save's moment is its first file's."""
    first: dict[str, Checkpoint] = {}
    for file in files:
        first[file.save_id] = min(first.get(file.save_id, file), file, key=lambda each: each.created_at or now)
    rows = [
        {
            "id": save_id,
            "launch_id": file.launch,
            "kind": file.kind.value,
            "global_step": file.global_step,
            "created_at": file.created_at or now,
        }
        for save_id, file in sorted(first.items())
    ]
    connection.execute(_save(connection.dialect.name), rows)


# Statements that every record needs are built once: that takes longer than to run them.


@cache
def _save(dialect: str) -> Any:
    return _with_first_moment(dialect, saves)


@cache
def _found_file(dialect: str) -> Any:
    return _with_first_moment(dialect, checkpoints)


def _with_first_moment(dialect: str, table: sa.Table) -> Any:
    statement = _insert(dialect, table)
    is_earlier = table.c.created_at > statement.excluded.created_at
    earlier = {"created_at": statement.excluded.created_at}
    return statement.on_conflict_do_update(index_elements=["id"], set_=earlier, where=is_earlier)


def _first_of(table: sa.Table) -> sa.Update:
    moment = sa.bindparam("own_moment", type_=table.c.created_at.type)
    chosen = table.update().where(table.c.id == sa.bindparam("own_id"), table.c.created_at > moment)
    return chosen.values(created_at=moment)


_FIRST_OF_FILE, _FIRST_OF_SAVE = _first_of(checkpoints), _first_of(saves)


@cache
def _new_file(dialect: str) -> Any:
    return _insert(dialect, checkpoints).on_conflict_do_nothing()


@cache
def _file(dialect: str) -> Any:
    statement = _insert(dialect, checkpoints)
    kept = ("id", "save_id", "rank", "path", "created_at")
    changed = {column.name: statement.excluded[column.name] for column in checkpoints.c if column.name not in kept}
    own, other = checkpoints.c.created_at, statement.excluded.created_at
    changed["created_at"] = sa.case((own > other, other), else_=own)  # two may adopt a file, and write in any order
    changed["state"] = state_but_trashed(statement)
    return statement.on_conflict_do_update(index_elements=["id"], set_=changed)


def mark(
    connection: sa.Connection, ids: Iterable[str], state: FileState, problem: Rule | None = None, *, at: datetime
) -> None:
    """Set what was seen of these checkpoints at a moment; what retention has given up is its own to say."""
    chosen = among(connection, checkpoints.c.id, ids) & (checkpoints.c.state != FileState.TRASHED.value)
    values = {"state": state.value, "problem": problem.value if problem else None, "amended_at": at}
    connection.execute(checkpoints.update().where(chosen).values(values))


def quarantine(connection: sa.Connection, files: Sequence[Checkpoint], now: datetime) -> None:  # noqa: ARG001
    """Set what is wrong with the states in these files, but not in another that was written to the path since."""
    for file in sorted(files, key=lambda file: file.id):
        chosen = (checkpoints.c.id == file.id) & checkpoints.c.mtime_ns.is_not_distinct_from(file.mtime_ns)
        connection.execute(checkpoints.update().where(chosen).values(quarantine=file.quarantine))


def add_source(
    connection: sa.Connection,
    *,
    launch_id: str,
    rank: int,
    directory: str,
    kind: Kind,
    prefix: str,
    breakpoint_prefix: str,
    names_before: Sequence[str],
    host: str | None,
    content: Content | None = None,
) -> None:
    """Record where a rank of a launch saves what, and runs, and which names there are of before it."""
    row = {
        "launch_id": launch_id,
        "rank": rank,
        "directory": directory,
        "kind": kind.value,
        "prefix": prefix,
        "breakpoint_prefix": breakpoint_prefix,
        "names_before": list(names_before),
        "host": host,
        "content": content.value if content else None,
    }
    insert_if_new(connection, sources, row)


def set_ending(
    connection: sa.Connection,
    *,
    launch_id: str,
    rank: int,
    global_step: int,
    optimizer_step: int | None,
    error: str | None,
    quarantine: str,
    now: datetime,
) -> None:
    """Record the step that training ended at on a rank, and the name of the exception that ended it, if one did."""
    row = {
        "launch_id": launch_id,
        "rank": rank,
        "global_step": global_step,
        "optimizer_step": optimizer_step,
        "error": error,
        "quarantine": quarantine or None,
        "created_at": now,
    }
    statement = insert(connection, endings).values(row)
    update = {name: statement.excluded[name] for name in row if name not in ("launch_id", "rank")}
    connection.execute(statement.on_conflict_do_update(index_elements=["launch_id", "rank"], set_=update))


def set_outcome(
    connection: sa.Connection,
    *,
    launch_id: str,
    rank: int,
    outcome: Outcome,
    checkpoint_id: str | None = None,
    detail: str | None = None,
    now: datetime,
) -> None:
    """Record what came of a launch's plan on a rank. The last word counts."""
    row = {
        "launch_id": launch_id,
        "rank": rank,
        "outcome": outcome.value,
        "checkpoint_id": checkpoint_id,
        "detail": detail,
        "created_at": now,
    }
    statement = insert(connection, outcomes).values(row)
    update = {name: statement.excluded[name] for name in row if name not in ("launch_id", "rank")}
    connection.execute(statement.on_conflict_do_update(index_elements=["launch_id", "rank"], set_=update))


def set_pin(connection: sa.Connection, run_id: int, global_step: int, now: datetime | None) -> bool:
    """Pin a step of a run, or unpin it where `now` is None; whether that changed anything."""
    if now is not None:
        row = {"run_id": run_id, "global_step": global_step, "created_at": now}
        return insert_if_new(connection, pins, row)
    chosen = (pins.c.run_id == run_id) & (pins.c.global_step == global_step)
    return connection.execute(pins.delete().where(chosen)).rowcount > 0


def row_of(file: Checkpoint, now: datetime | None = None) -> dict[str, Any]:
    """A record as a row; `now` is its moment where it has none."""
    return {
        "id": file.id,
        "save_id": file.save_id,
        "rank": file.rank,
        "path": file.path,
        "optimizer_step": file.optimizer_step,
        "epoch": file.epoch,
        "step_in_epoch": file.step_in_epoch,
        "size": file.size,
        "digest": file.digest,
        "mtime_ns": file.mtime_ns,
        "format": file.format,
        "content": file.content.value,
        "strategy_file": file.strategy_file,
        "metrics": dict(file.metrics),
        "state": file.state.value,
        "problem": file.problem.value if file.problem else None,
        "quarantine": file.quarantine or None,
        "created_at": file.created_at or now,
        "amended_at": file.amended_at,
    }


def insert(connection: sa.Connection, table: sa.Table) -> Any:
    """INSERT with ON CONFLICT, which SQLAlchemy has once for each of the two databases and never for both."""
    return _insert(connection.dialect.name, table)


def _insert(dialect: str, table: sa.Table) -> Any:
    # Only the one in use: to import the other takes as long as a command's whole query.
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def insert_if_new(connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> bool:
    """Insert a row unless one with its key is there; whether it was."""
    inserted = insert(connection, table).values(row).on_conflict_do_nothing().returning(sa.literal(1))
    return connection.execute(inserted).first() is not None
