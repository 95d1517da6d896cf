"""Protect a step of a run from retention: pin it, or give it a name."""

from __future__ import annotations

from datetime import datetime, timezone
from shlex import quote
from typing import TYPE_CHECKING

from ckptstore.catalog import marks, reads, writes
from ckptstore.core.model import FileState
from ckptstore.errors import RefusedError
from ckptstore.ops import meant
from ckptstore.ops.join import check_name
from ckptstore.ops.overview import no_such_step
from ckptstore.ops.records import Pinned, Tagged
from ckptstore.ops.runs import find_run
from ckptstore.ops.writers import directory_to_tell, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint

_THERE = (FileState.COMPLETE, FileState.IN_PROGRESS, FileState.DAMAGED)


def pin(database: Database, run: str, step: int) -> bool:
    """Pin a step that has a save; whether it was not pinned before.

    Raises `RefusedError` where a file of it is in the trash, or nothing of it is left.
    """
    step = meant.step_of(step)
    run_id = find_run(database, run)
    now = datetime.now(timezone.utc)
    with database.write() as connection:
        files = _files_there(connection, run, run_id, step)
        changed = writes.set_pin(connection, run_id, step, now)
    if changed:
        _journal(database, Pinned(run, step, pinned=True, at=now), files)
    return changed


def unpin(database: Database, run: str, step: int) -> bool:
    """Take a pin back; whether there was one. Raises `UsageError` for a step that has no save."""
    step = meant.step_of(step)
    run_id = find_run(database, run)
    now = datetime.now(timezone.utc)
    with database.write() as connection:
        files = reads.files_of(connection, run_id, step=step)
        changed = writes.set_pin(connection, run_id, step, None)
        if not changed and not files:
            raise no_such_step(run, step)
    if changed:
        _journal(database, Pinned(run, step, pinned=False, at=now), files)
    return changed


def tag(database: Database, run: str, step: int, name: str) -> bool:
    """Give a step that has a save a name, which protects it; whether it did not have it before.

    Raises `RefusedError` as `pin` does, and where another step of the run has that name: moving it would take away the
    protection.
    """
    check_name("tag", name)
    step = meant.step_of(step)
    run_id = find_run(database, run)
    now = datetime.now(timezone.utc)
    with database.write() as connection:
        files = _files_there(connection, run, run_id, step)
        there = marks.tag_step(connection, run_id, name)
        if there not in (None, step):
            raise RefusedError(
                f"step {there} of run {run!r} is tagged {name!r}", f"first: ckptstore untag {quote(run)} {quote(name)}"
            )
        if there is None:
            marks.add_tag(connection, run_id, name, step, now)
    if there is None:
        _journal(database, Tagged(run, name, step, now), files)
    return there is None


def untag(database: Database, run: str, name: str) -> bool:
    """Take a name away; whether there was one."""
    run_id = find_run(database, run)
    now = datetime.now(timezone.utc)
    with database.write() as connection:
        step = marks.tag_step(connection, run_id, name)
        files = [] if step is None else reads.files_of(connection, run_id, step=step)
        changed = marks.remove_tag(connection, run_id, name, now)
    if changed:
        _journal(database, Tagged(run, name, None, now), files)
    return changed


def _journal(database: Database, word: Pinned | Tagged, files: Sequence[Checkpoint]) -> None:
    """Beside the files of the step, in one of their directories: a catalog made anew has it again."""
    if files:
        directory = directory_to_tell(file.path for file in files)
        launch = next(file.launch for file in files if file.path.rpartition("/")[0] == directory)
        ledger = shared(database)
        ledger.pass_on(word, launch, directory)
        ledger.close()


def _files_there(connection: Connection, run: str, run_id: int, step: int) -> Sequence[Checkpoint]:
    """The files of a step of which something is there; under the run's lock, as retention asks.

    Raises `RefusedError` where retention has given up a file of a state that is there, or all there was.
    """
    writes.lock_run(connection, run_id)
    files = reads.files_of(connection, run_id, step=step)
    if not files:
        raise no_such_step(run, step)
    of_launch: dict[str, set[FileState]] = {}
    for file in files:
        of_launch.setdefault(file.launch, set()).add(file.state)
    there = [states for states in of_launch.values() if not states.isdisjoint(_THERE)]
    if any(FileState.TRASHED in states for states in there or of_launch.values()):
        raise RefusedError(
            f"gc has removed {'files of ' if there else ''}step {step} of run {run!r}: "
            "what is in the trash cannot be protected",
            f"first, while it is there: ckptstore undo {quote(run)}",
        )
    if not there:
        raise RefusedError(f"nothing of step {step} of run {run!r} is left", f"see: ckptstore list {quote(run)}")
    return files
