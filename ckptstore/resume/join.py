"""Makes a rank part of a launch."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog.project import project
from ckptstore.catalog.runs import how_back
from ckptstore.core import validate
from ckptstore.core.events import LaunchStarted
from ckptstore.core.limits import LONGEST_NAME
from ckptstore.core.model import Launch, launch_key
from ckptstore.core.replicas import from_name
from ckptstore.errors import RefusedError, UsageError
from ckptstore.journal.sync import sync_run
from ckptstore.outside import os, token_hex, utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptstore.catalog.engine import Connection, Database


log = logging.getLogger("ckptstore")


def new_launch_id() -> str:
    """A new id for a launch: one rank makes it and tells the others. Ids sort by the time they were made."""
    return f"{utc_now():%Y%m%dT%H%M%S}-{token_hex(3)}"


def join(
    database: Database,
    run: str,
    *,
    rank: int,
    world_size: int,
    launch_id: str | None,
    layout: str | None,
    seen: Mapping[str, int] = MappingProxyType({}),
    claim: Callable[[Connection, Launch], None] | None = None,
) -> Launch:
    """Add the launch if this rank is its first, and return its facts.

    The id is `launch_id`, else CKPTSTORE_LAUNCH_ID, else made here if there is only one rank. `layout` is
    "data_parallel" or "stand_alone" (None: no replicas are known), `seen` is the argument of `sync_run`. `claim` is
    called in the transaction that adds the launch, and may refuse it. Raises `UsageError` for invalid arguments;
    `RefusedError` for a forgotten run, if other ranks gave another world size, or if this rank already saved in the
    launch.
    """
    check_name("run", run)
    rank, world_size = validate.rank_of(rank, world_size)
    launch_id = launch_id or os.environ.get("CKPTSTORE_LAUNCH_ID") or (new_launch_id() if world_size == 1 else None)
    if launch_id is None:
        raise UsageError(
            f"the {world_size} ranks of a launch must share its id",
            "give all ranks the same launch_id or CKPTSTORE_LAUNCH_ID, and a new one at every start",
        )
    check_name("launch", launch_id)
    with database.read() as connection:
        run = _first_name(connection, run)
        key = launch_key(run, launch_id)
        known = reads.launch(connection, key)
        if known is not None:  # all ranks but the first need no lock
            _check(connection, known, rank, world_size)
            return known
        run_id = reads.run_id(connection, run)
    if run_id is None:
        check_new_run(run)
    else:  # a catalog from a backup may lack launches that journals have
        sync_run(database, run_id, seen=seen)
    now = utc_now()

    def work(connection: Connection) -> Launch:
        launch = reads.launch(connection, key)
        if launch is None:
            new = Launch(
                id=launch_id,
                run=run,
                order=0,
                world_size=world_size,
                layout=from_name(layout, world_size),
                created_at=reads.next_moment(connection, run, now),
            )
            project(connection, [LaunchStarted(new)])
            launch = reads.launch(connection, key)
        if launch is None:
            raise RefusedError(f"launch {launch_id} of run {run} could not be stored", "start again")
        if claim is not None:
            claim(connection, launch)
        _check(connection, launch, rank, world_size)
        return launch

    return database.in_write(work)


def _first_name(connection: Connection, run: str) -> str:
    """The first name of a run, which all its records use. Raises `RefusedError` for a forgotten run."""
    found = reads.called(connection, run)
    if found is None:
        return run
    if found.forgotten:
        raise RefusedError(f"run {run!r} was forgotten", f"{how_back(run)}; or give this one another name")
    if run != found.name:
        log.warning("run %r was renamed to %r: this launch is of that run, and goes on from it", run, found.name)
    return found.first


def _check(connection: Connection, launch: Launch, rank: int, world_size: int) -> None:
    """Raise `RefusedError` if the launch has another world size, or if this rank already saved in it."""
    if launch.world_size != world_size:
        raise RefusedError(
            f"launch {launch.id} has {launch.world_size} ranks, this rank says {world_size}",
            "give every start a launch id of its own",
        )
    if reads.has_saved(connection, launch.key, rank):
        raise RefusedError(
            f"rank {rank} has already saved in launch {launch.id}",
            "give every start a launch id of its own",
        )


def check_name(what: str, name: object) -> None:
    """Raise `UsageError` if a name cannot be that of a run or a launch."""
    hint = f"use 1 to {LONGEST_NAME} printable characters"
    if not isinstance(name, str):
        raise UsageError(f"the name of a {what} is text, not {type(name).__name__}", hint)
    if not name or name != name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
        raise UsageError(f"{name!r} cannot be the name of a {what}", hint)


def check_new_run(name: str) -> None:
    """As `check_name`, for a new run. A command takes `-x` for an option, and a browser `..` for the page above."""
    check_name("run", name)
    if name.startswith("-") or name in (".", ".."):
        raise UsageError(f"{name!r} cannot be the name of a new run", "begin it with a letter or a digit")
