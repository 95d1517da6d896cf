"""Finds a run by its first or present name, or all runs."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.core.hints import Command
from ckptstore.core.limits import is_text
from ckptstore.core.reference import Reference, readings
from ckptstore.errors import UnknownRunError, UsageError

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


def find_reference(database: Database, text: str) -> tuple[int, Reference]:
    """What a reference means: the id of its run, and the first of its readings whose run is in the catalog.

    Raises `UnknownRunError` as `find_run` does, and `UsageError` for a reference that cannot be read.
    """
    with database.read() as connection:
        for reading in readings(text):
            if _called(connection, reading.run) is not None:
                return called_in(connection, database, reading.run).id, reading
        return called_in(connection, database, text.rpartition("@")[0] or text).id, Reference(text)


def called_in(connection: Connection, database: Database, run: str, *, even_forgotten: bool = False) -> Called:
    """As `find_called`, in a transaction."""
    found = _called(connection, run)
    if found is None:
        names = reads.run_names(connection)
        if not names:
            raise UnknownRunError(f"no run {run!r} in {database.name}: this catalog has no runs", if_lost())
        near = get_close_matches(run, names, 1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownRunError(f"no run {run!r} in {database.name}", f"{meant}to list the runs: {Command('runs')}")
    if found.forgotten and not even_forgotten:
        raise UnknownRunError(f"run {run!r} was forgotten", how_back(run))
    return found


def _called(connection: Connection, run: str) -> Called | None:
    if not isinstance(run, str):
        raise UsageError(f"the name of a run is text, not {type(run).__name__}", f"to list the runs: {Command('runs')}")
    return reads.called(connection, run) if is_text(run) else None


def if_lost() -> str:
    """The hint about a catalog without runs: the first command that looks for a lost catalog makes it anew, empty."""
    rebuild = Command("scan", "DIR")
    return f"check --db and CKPTSTORE_URL; if the catalog was lost, rebuild it from the journals: {rebuild}"


def how_back(run: str) -> str:
    """The hint how to bring back a forgotten run."""
    return f"{Command('forget', run, '--undo')} brings it back"


def run_names(database: Database, run: str | None) -> list[str]:
    """The given name alone, or the names of all runs (None)."""
    if run is not None:
        return [run]
    with database.read() as connection:
        return reads.run_names(connection)
