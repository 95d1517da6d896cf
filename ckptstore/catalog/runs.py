"""Find a run by its name, its first one or the one that it has now, or all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.core.hints import Command
from ckptstore.errors import UnknownRunError

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.reads import Called


def find_run(database: Database, run: str) -> int:
    """The id of a run; raises `UnknownRunError` if there is none of that name, or it was forgotten."""
    return find_called(database, run).id


def find_called(database: Database, run: str, *, even_forgotten: bool = False) -> Called:
    """A run by its names; raises `UnknownRunError` if there is none of that name, or it was forgotten."""
    with database.read() as connection:
        return called_in(connection, database, run, even_forgotten=even_forgotten)


def called_in(connection: Connection, database: Database, run: str, *, even_forgotten: bool = False) -> Called:
    """As `find_called`, in a transaction."""
    is_text = run.encode("utf-8", "ignore").decode("utf-8") == run
    found = reads.called(connection, run) if is_text else None
    if found is None:
        raise UnknownRunError(f"no run {run!r} in {database.name}", f"{Command('runs')} shows those there are")
    if found.forgotten and not even_forgotten:
        raise UnknownRunError(f"run {run!r} was forgotten", how_back(run))
    return found


def how_back(run: str) -> str:
    """How a run that was forgotten comes back."""
    return f"{Command('forget', run, '--undo')} brings it back"


def run_names(database: Database, run: str | None) -> list[str]:
    """The run that is named, or all that there are."""
    if run is not None:
        return [run]
    with database.read() as connection:
        return reads.run_names(connection)
