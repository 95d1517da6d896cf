"""Protect a step of a run from retention: pin it, or give it a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import copies, reads, user_events
from ckptstore.catalog.runs import find_called
from ckptstore.core import validate
from ckptstore.core.copies import CopyState
from ckptstore.core.events import StepPinned, StepTagged
from ckptstore.core.hints import Command
from ckptstore.core.model import FileState
from ckptstore.core.reference import tells_state
from ckptstore.errors import RefusedError, UsageError
from ckptstore.journal.recorder import record_of_run
from ckptstore.resume.join import check_name
from ckptstore.resume.overview import no_such_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint


def pin(database: Database, run: str, step: int) -> bool:
    """Pin a step that has a save; return whether that is new.

    Raises `RefusedError` if a file of it is in the trash, or neither a file nor a copy is left.
    """
    return _pin(database, run, step, pinned=True)


def unpin(database: Database, run: str, step: int) -> bool:
    """Remove a pin; return whether there was one. Raises `UsageError` for a step that has no save."""
    return _pin(database, run, step, pinned=False)


def _pin(database: Database, run: str, step: int, *, pinned: bool) -> bool:
    step = validate.step_of(step)
    run_id, first, *_ = find_called(database, run)

    is_new = False

    def decide(connection: Connection) -> tuple[Sequence[Event], Sequence[Checkpoint]]:
        nonlocal is_new
        files = _files_there(connection, run, run_id, step) if pinned else reads.files_of(connection, run_id, step=step)
        is_new = (step in user_events.pinned_steps(connection, run_id)) != pinned
        if not (is_new or files):
            raise no_such_step(run, step)
        # A journal may have an unpin that was killed before it reached the catalog.
        is_told = is_new or pinned
        return ([user_events.said_now(connection, StepPinned, first, step, pinned)], files) if is_told else ([], [])

    record_of_run(database, decide)
    return is_new


def tag(database: Database, run: str, step: int, name: str) -> bool:
    """Give a step that has a save a name, which protects it; return whether that is new.

    Raises `RefusedError` as `pin` does, and if another step of the run has that name: moving the name would end that
    step's protection.
    """
    check_name("tag", name)
    if tells_state(name):
        raise UsageError(
            f"{name!r} cannot be a tag: numbers mean steps, best:… the best state, and a state follows the @",
            "use another name",
        )
    step = validate.step_of(step)
    run_id, first, *_ = find_called(database, run)

    is_new = False

    def decide(connection: Connection) -> tuple[Sequence[Event], Sequence[Checkpoint]]:
        nonlocal is_new
        files = _files_there(connection, run, run_id, step)
        there = user_events.tag_step(connection, run_id, name)
        if there not in (None, step):
            raise RefusedError(
                f"step {there} of run {run!r} is tagged {name!r}", f"first: {Command('untag', run, name)}"
            )
        is_new = there is None
        return [user_events.said_now(connection, StepTagged, first, name, step)], files  # as for a pin

    record_of_run(database, decide)
    return is_new


def untag(database: Database, run: str, name: str) -> bool:
    """Remove a tag; return whether there was one. Raises `UsageError` for a text that no tag can be."""
    check_name("tag", name)
    run_id, first, *_ = find_called(database, run)

    def decide(connection: Connection) -> tuple[Sequence[Event], Sequence[Checkpoint]]:
        step = user_events.tag_step(connection, run_id, name)
        files = [] if step is None else reads.files_of(connection, run_id, step=step)
        return [] if step is None else [user_events.said_now(connection, StepTagged, first, name, None)], files

    return record_of_run(database, decide)


def check_was_tag(database: Database, run: str, name: str) -> None:
    """Raise `UsageError` unless a step of the run has that name, or had it once."""
    check_name("tag", name)
    run_id = find_called(database, run).id
    with database.read() as connection:
        if user_events.tagged_at(connection, run_id, name) is None:
            raise UsageError(f"run {run!r} has no tag {name!r}", f"see: {Command('list', run)}")


def _files_there(connection: Connection, run: str, run_id: int, step: int) -> Sequence[Checkpoint]:
    """The files of a step that has present ones, or copies. Locks the run, as retention does.

    Raises `RefusedError` if a present state of the step has files in the trash, or if no file and no copy is left.
    """
    reads.lock_run(connection, run_id)
    files = reads.files_of(connection, run_id, step=step)
    if not files:
        raise no_such_step(run, step)
    of_launch: dict[str, set[FileState]] = {}
    for file in files:
        of_launch.setdefault(file.launch, set()).add(file.state)
    there = [states for states in of_launch.values() if any(state.is_there for state in states)]
    if any(FileState.TRASHED in states for states in there or of_launch.values()):
        raise RefusedError(
            f"gc has removed {'files of ' if there else ''}step {step} of run {run!r}: "
            "a state in the trash cannot be protected",
            f"bring it back first, while it is still there: {Command('undo', run)}",
        )
    if not there and not copies.ready_copies(connection, files):
        known = copies.copies_of(connection, [file.id for file in files])
        for copy in (copy for some in known.values() for copy in some if copy.state is CopyState.TRASHED):
            raise RefusedError(
                f"gc has removed the copies of step {step} of run {run!r} in tier {copy.tier.name}",
                f"bring them back first, while they are still there: {Command('undo', run, '--tier', copy.tier.name)}",
            )
        raise RefusedError(f"nothing of step {step} of run {run!r} is left", f"see: {Command('list', run)}")
    return files
