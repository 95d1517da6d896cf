"""Find a run by its name, or all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.errors import UnknownRunError

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database


def find_run(database: Database, run: str) -> int:
    """The id of a run; raises `UnknownRunError` if there is none of that name."""
    is_text = run.encode("utf-8", "ignore").decode("utf-8") == run
    with database.read() as connection:
        found = reads.run_id(connection, run) if is_text else None
    if found is None:
        raise UnknownRunError(f"no run {run!r} in {database.name}", "ckptstore runs shows those there are")
    return found


def run_names(database: Database, run: str | None) -> list[str]:
    """The run that is named, or all that there are."""
    if run is not None:
        return [run]
    with database.read() as connection:
        return reads.run_names(connection)
