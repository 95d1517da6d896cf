"""Protect a step of a run from retention."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, writes
from ckptstore.ops.ledger import shared
from ckptstore.ops.overview import no_such_step
from ckptstore.ops.records import Pinned
from ckptstore.ops.resolve import find_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint


def pin(database: Database, run: str, step: int) -> bool:
    """Pin a step that has a save; whether it was not pinned before."""
    run_id = find_run(database, run)
    now = datetime.now(timezone.utc)
    with database.write() as connection:
        files = reads.files_of(connection, run_id, step=step)
        if not files:
            raise no_such_step(run, step)
        changed = writes.set_pin(connection, run_id, step, now)
    if changed:
        _journal(database, Pinned(run, step, pinned=True, at=now), files)
    return changed


def unpin(database: Database, run: str, step: int) -> bool:
    """Take a pin back; whether there was one."""
    run_id = find_run(database, run)
    now = datetime.now(timezone.utc)
    with database.write() as connection:
        files = reads.files_of(connection, run_id, step=step)
        changed = writes.set_pin(connection, run_id, step, None)
    if changed and files:
        _journal(database, Pinned(run, step, pinned=False, at=now), files)
    return changed


def _journal(database: Database, pinned: Pinned, files: Sequence[Checkpoint]) -> None:
    """Beside the files of the step, in the first of their directories: a catalog made anew has it again."""
    first = min(files, key=lambda file: file.path)
    ledger = shared(database)
    ledger.pin(pinned, first.launch, str(Path(first.path).parent))
    ledger.close()
