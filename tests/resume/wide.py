"""A wide run with a long history: real files of the newest saves, and a catalog that knows many older ones."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from ckptstore.api import Catalog
from ckptstore.catalog.tables import checkpoints, saves
from ckptstore.core.events import SourceAdded
from ckptstore.core.model import Checkpoint, FileState, Kind, Launch, Source, launch_key
from ckptstore.resume import register
from tests.projecting import put, put_files

RUN = "run"
LAUNCH = "L1"
KEY = launch_key(RUN, LAUNCH)
STEPS_PER_EPOCH = 10
_MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Wide:
    """A launch of `ranks` ranks that saved after every step; the files of the newest `kept` saves are below `root`."""

    root: Path
    ranks: int
    kept: int = 1

    def directory(self, rank: int) -> Path:
        return self.root / f"rank_{rank}"

    def path(self, rank: int, age: int = 0) -> Path:
        """A rank's file in the newest save, or in one that is `age` saves older."""
        return self.directory(rank) / f"net-9_{self.kept - age}.ckpt"

    @cached_property
    def newest_paths(self) -> list[str]:
        return [str(self.path(rank)) for rank in range(self.ranks)]

    def write(self) -> None:
        for rank in range(self.ranks):
            self.directory(rank).mkdir(parents=True, exist_ok=True)
            for age in range(self.kept):
                self.path(rank, age).write_bytes(b"%4d" % rank)

    def fill(
        self, catalog: Catalog, history: int, *, layout: str | None = None, sources: bool = False, gone: bool = False
    ) -> None:
        """Tell the catalog of `history` saves, each of every rank.

        `sources`: the ranks have said where they save. `gone`: the catalog knows that the files of the older saves
        are not there any more, as MindSpore deletes them; else it takes them to be there, as nobody looked.
        """
        launch = catalog.join(RUN, rank=0, world_size=self.ranks, launch_id=LAUNCH, layout=layout)
        launch.set_steps_per_epoch(STEPS_PER_EPOCH)
        launch.resolve()
        now = datetime.now(timezone.utc)
        files = [
            _record(launch.facts, rank, self.path(rank, age), step=history - age)
            for age in range(self.kept)
            for rank in range(self.ranks)
        ]
        none: frozenset[str] = frozenset()
        places = [
            Source(RUN, LAUNCH, rank, str(self.directory(rank)), Kind.PERIODIC, "net", "net", none, f"host-{rank // 8}")
            for rank in range(self.ranks if sources else 0)
        ]
        put(catalog, [SourceAdded(source, now) for source in places])
        put_files(catalog, files)
        with catalog.database.write() as connection:
            oldest = files[-1]
            _copy(connection, oldest.save_id, range(1, oldest.global_step), gone=gone)
            if not catalog.database.is_sqlite:
                connection.execute(sa.text("ANALYZE"))  # PostgreSQL does so by itself, some time after a bulk load


def _record(launch: Launch, rank: int, path: Path, *, step: int) -> Checkpoint:
    found = register.measured(register.describe(launch, rank=rank, path=path, kind=Kind.PERIODIC, global_step=step))
    assert found is not None
    return found


def _copy(connection: sa.Connection, save_id: str, steps: range, *, gone: bool) -> None:
    """Older saves, at these steps, with as many files as that one has."""
    older = [
        {"id": f"{step:016d}", "launch_id": KEY, "kind": "periodic", "global_step": step, "created_at": _MOMENT}
        for step in steps
    ]
    if not older:
        return
    connection.execute(saves.insert(), older)
    there = (FileState.MISSING if gone else FileState.COMPLETE).value
    # Else PostgreSQL would look for them again, for each step, among all that were inserted so far.
    own = sa.select(checkpoints).where(checkpoints.c.save_id == save_id).cte("own").prefix_with("MATERIALIZED")
    other = {
        "id": sa.func.substr(saves.c.id, 1, 16).concat(sa.func.substr(own.c.id, 1, 16)),
        "save_id": saves.c.id,
        "path": own.c.path.concat(sa.func.substr(saves.c.id, 1, 16)).concat(".ckpt"),
        "state": sa.literal(there),
    }
    names = [column.name for column in checkpoints.columns]
    copied = (
        sa.select(*(other.get(name, own.c[name]) for name in names))
        .select_from(own.join(saves, saves.c.id != save_id))
        .where(sa.func.length(saves.c.id) == 16)
    )
    for index in checkpoints.indexes:  # to build them once takes a third of the time
        index.drop(connection)
    connection.execute(checkpoints.insert().from_select(names, copied))
    for index in checkpoints.indexes:
        index.create(connection)


class Asked(NamedTuple):
    """One statement as it was sent, with its values."""

    text: str
    values: Any


@contextmanager
def statements() -> Iterator[list[Asked]]:
    """What this thread asks of any database meanwhile; a server of another test may not have ended."""
    found: list[Asked] = []
    own = threading.get_ident()

    def note(_connection: object, _cursor: object, text: str, values: Any, *_: object) -> None:
        if text.startswith("SELECT") and threading.get_ident() == own:
            found.append(Asked(text, values))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
