"""How far the catalog has read each journal: work under way, and no fact."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import rows
from ckptstore.catalog.among import among
from ckptstore.catalog.project import insert
from ckptstore.catalog.tables import journals, runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet


class ReadTo(NamedTuple):
    """Up to which byte a journal was taken up, and its head (None: not known)."""

    end: int
    head: str | None


def journals_of(connection: sa.Connection, run: int) -> dict[str, ReadTo]:
    """The journals that tell of a run, and how far each was taken up."""
    found = rows.many(connection.execute(_JOURNALS_OF, {"own_run": run}))
    return {path: ReadTo(end, head) for path, end, head in found}


def every_journal(connection: sa.Connection) -> dict[str, dict[str, ReadTo]]:
    """The journals of every run by its name, and how far each was taken up."""
    query = sa.select(runs.c.name, journals.c.path, journals.c.read_to, journals.c.head).join(journals)
    found: dict[str, dict[str, ReadTo]] = {}
    for name, path, end, head in rows.many(connection.execute(query)):
        found.setdefault(name, {})[path] = ReadTo(end, head)
    return found


def read_to(connection: sa.Connection, paths: Sequence[str]) -> dict[str, ReadTo]:
    """How far these journals were taken up, for every run that they tell of; unknown ones are left out."""
    lowest, head = sa.func.min(journals.c.read_to), sa.func.max(journals.c.head)
    query = sa.select(journals.c.path, lowest, head).group_by(journals.c.path)
    found = connection.execute(query.where(among(journals.c.path, paths)))
    return {row[0]: ReadTo(row[1], row[2]) for row in found}


def journals_named(connection: sa.Connection, names: AbstractSet[str]) -> set[str]:
    """The journals of any run that have one of these file names. It reads all journals' paths."""
    every = connection.execute(sa.select(journals.c.path).distinct()).scalars()
    return {path for path in every if path.rpartition("/")[2] in names}


def runs_told(connection: sa.Connection, paths: Sequence[str]) -> list[str]:
    """The names of the runs that these journals tell of."""
    told = sa.select(runs.c.name).distinct().join(journals).where(among(journals.c.path, paths))
    return sorted(connection.execute(told).scalars())


def set_read_to(connection: sa.Connection, ends: Mapping[str, ReadTo], run_ids: Mapping[str, Iterable[int]]) -> None:
    """Journals were read so far; `run_ids` says which runs each tells of."""
    for path, (end, head) in ends.items():
        connection.execute(journals.update().where(journals.c.path == path).values(read_to=end, head=head))
    rows = [
        {"run_id": run, "path": path, "read_to": end, "head": head}
        for path, (end, head) in ends.items()
        for run in run_ids.get(path, ())
    ]
    if rows:
        connection.execute(insert(connection, journals).on_conflict_do_nothing(), rows)


def went_on(connection: sa.Connection, run: str, path: str, begin: int, to: ReadTo) -> bool:
    """A journal has grown by what was just written to the catalog; False where the catalog lacks what is before it."""
    if begin == 0:
        run_id = sa.select(runs.c.id).where(runs.c.name == run).scalar_subquery()
        row = {"run_id": run_id, "path": path, "read_to": to.end, "head": to.head}
        statement = insert(connection, journals).values(row)
        changed = {"read_to": statement.excluded.read_to, "head": statement.excluded.head}
        connection.execute(statement.on_conflict_do_update(index_elements=["run_id", "path"], set_=changed))
        return True
    place = {"own_run": run, "own_path": path, "own_begin": begin, "own_end": to.end, "own_head": to.head}
    return connection.execute(_WENT_ON, place).rowcount > 0


_JOURNALS_OF = sa.select(journals.c.path, journals.c.read_to, journals.c.head).where(
    journals.c.run_id == sa.bindparam("own_run")
)
_END = sa.bindparam("own_end", type_=sa.BigInteger)
_WENT_ON = (
    journals.update()
    .where(
        journals.c.run_id == sa.select(runs.c.id).where(runs.c.name == sa.bindparam("own_run")).scalar_subquery(),
        journals.c.path == sa.bindparam("own_path"),
        journals.c.read_to >= sa.bindparam("own_begin"),
        journals.c.head == sa.bindparam("own_head"),
    )
    .values(read_to=sa.case((journals.c.read_to > _END, journals.c.read_to), else_=_END))
)
"""Built once, as all that every record or start needs: that takes longer than to run it."""
