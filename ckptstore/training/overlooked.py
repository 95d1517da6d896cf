"""A newer state that a start overlooked: a journal where the launch saves has it, and the catalog did not know it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.catalog import directories, reads, tallies
from ckptstore.core.hints import Call
from ckptstore.core.model import launch_key
from ckptstore.disk.run_directories import remember, root_of
from ckptstore.errors import CatalogUnavailableError
from ckptstore.journal.sync import found_below, take_up_found

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, Launch

log = logging.getLogger("ckptstore")


class Begun(NamedTuple):
    """A launch, the step that it starts after (0: none), and the highest step of each launch that was known then."""

    launch: Launch
    global_step: int
    known: Mapping[str, int]


class View(NamedTuple):
    """The records of a directory's journals: a database that has them, and the ids of files new to it."""

    directory: str
    database: Database
    new: tuple[str, ...]


class Overlooked(NamedTuple):
    """A message about a newer state, how the next start finds it, and the call that goes on from it."""

    what: str
    hint: str
    call: Call

    def log_error(self) -> None:
        """Log it in a training that has begun, and goes on from its own state."""
        log.error(
            "%s. Training goes on, and its saves are registered; to go on from that step instead, stop it and start "
            "again with %s",
            self.what,
            self.call,
        )


def overlooked(view: View, begun: Begun, file: Checkpoint, *, name: str, catalog: Database) -> Overlooked:
    """The message about this newer file of the run, whose present name is `name`, or of one renamed to that name.

    `catalog` did not know the file; the database of the view may be a temporary one.
    """
    is_own = file.run == begun.launch.run
    begins = f"after step {begun.global_step}" if begun.global_step else "from the beginning"
    held = f"{file.path} holds step {file.global_step} of run "
    held += name if is_own else f"{file.run}, which was renamed to {name}"
    what = f"this launch starts {begins}, but {held}, and the catalog {catalog.name} did not know it then"
    call = Call("resume", lineage=file.launch) if is_own else Call("join", repr(file.run))
    # The catalog that knows this launch now has a run of its name: the next start would be of that run.
    hint = "start again: it is found now" if is_own or view.database is not catalog else f"call {call}"
    return Overlooked(what, f"{hint}; or start a run of another name", call)


def newer_state(view: View, begun: Begun, run: str | None = None) -> Checkpoint | None:
    """The newest file of a run in the directory that was not known when the launch started; None if there is none.

    `run` is its first name (None: the run of the launch). Files of the launch itself do not count: other ranks may have
    saved them by now.
    """
    own, found = begun.launch, []
    run = own.run if run is None else run
    before = begun.known if run == own.run else {}
    with view.database.read() as connection:
        highest = tallies.highest_steps(connection, reads.run_id(connection, run) or 0)
        for launch, step in highest.items():
            known, key = max(begun.global_step, before.get(launch, 0)), launch_key(run, launch)
            if key != own.key and step > known:
                found += directories.files_after(connection, view.directory, key, known)
    return max(found, key=lambda file: file.global_step, default=None)


def take_up_for_next(database: Database, names: Iterable[str], rank: int, directory: str) -> None:
    """Read the journals here into the catalog, for the next start; rank 0 reads those of all ranks."""
    remember(database.name, names, directory)
    sizes, _ = found_below([root_of(directory) if rank == 0 else directory])
    try:
        with database.connected():
            take_up_found(database, sizes)
    except CatalogUnavailableError as error:
        log.info("%s. The catalog does not yet have the records of the journals in %s.", error, directory)


def of_renamed(view: View, begun: Begun) -> Checkpoint | None:
    """The newest file here of a run that was renamed to the name of this one, if this one has no state to go on."""
    if begun.launch.parent is not None:
        return None
    with view.database.read() as connection:
        called = reads.renamed_to(connection, begun.launch.run)
    found = [file for run in called if (file := newer_state(view, begun, run)) is not None]
    return max(found, key=lambda file: file.global_step, default=None)
