"""Files that a registrar records: a scan leaves them to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.core.model import Kind
from ckptstore.ops.authorship import wrote

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.reads import Source


def watched(database: Database, run_id: int | None) -> Callable[[str], bool]:
    """Whether a path is one that a registrar of this run watches, or reconciliation takes care of."""
    sources: dict[str, list[Source]] = {}
    if run_id is not None:
        with database.read() as connection:
            for source in reads.sources_of(connection, run_id):
                sources.setdefault(source.directory, []).append(source)
    ttp = {home: found for home, every in sources.items() if (found := [s for s in every if s.kind is Kind.TTP])}

    if not sources:
        return lambda _: False

    def is_watched(path: str) -> bool:
        home, _, name = path.rpartition("/")
        above = [source for parent in list(Path(path).parents)[2:3] for source in ttp.get(str(parent), ())]
        return any(wrote(source, name) for source in [*sources.get(home, ()), *above])

    return is_watched
