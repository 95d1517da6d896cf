"""Protect a step of a run from retention."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, writes
from ckptstore.ops.overview import no_such_step
from ckptstore.ops.resolve import find_run

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database


def pin(database: Database, run: str, step: int) -> bool:
    """Pin a step that has a save; whether it was not pinned before."""
    run_id = find_run(database, run)
    with database.write() as connection:
        if not reads.files_of(connection, run_id, step=step):
            raise no_such_step(run, step)
        return writes.set_pin(connection, run_id, step, datetime.now(timezone.utc))


def unpin(database: Database, run: str, step: int) -> bool:
    """Take a pin back; whether there was one."""
    run_id = find_run(database, run)
    with database.write() as connection:
        return writes.set_pin(connection, run_id, step, None)
