"""Records how far the catalog has read each journal segment, and lines that could not be written to a journal."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import rows
from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.project import add_run
from ckptstore.catalog.tables import journals, runs, unwritten
from ckptstore.catalog.upserts import insert
from ckptstore.core.ids import derived_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet


class ReadTo(NamedTuple):
    """Up to which byte a segment was taken up. `by_summary`: only the events in its summary were.

    `is_copy`: it is a copy of another segment, and is not read any further.
    """

    end: int = 0
    by_summary: bool = False
    is_copy: bool = False


def journals_of(connection: sa.Connection, run: int) -> dict[str, ReadTo]:
    """The journals with events of a run, without copies, and how far each was taken up."""
    found = rows.many(connection.execute(_JOURNALS_OF, {"own_run": run}))
    return {path: ReadTo(end, bool(by_summary)) for path, end, by_summary in found}


def ends_of_runs(connection: sa.Connection) -> dict[int, dict[str, int]]:
    """The journals of every run by its id, without copies, and up to which byte each was taken up."""
    found: dict[int, dict[str, int]] = {}
    for run, path, end in rows.many(connection.execute(_ENDS_OF_RUNS)):
        found.setdefault(run, {})[path] = end
    return found


_ENDS_OF_RUNS = sa.select(journals.c.run_id, journals.c.path, journals.c.read_to).where(sa.not_(journals.c.is_copy))


def every_journal(connection: sa.Connection) -> dict[str, dict[str, ReadTo]]:
    """The journals of every run by its name, and how far each was taken up."""
    of = (journals.c.path, journals.c.read_to, journals.c.by_summary, journals.c.is_copy)
    found: dict[str, dict[str, ReadTo]] = {}
    for name, path, end, *flags in rows.many(connection.execute(sa.select(runs.c.name, *of).join(journals))):
        found.setdefault(name, {})[path] = ReadTo(end, *map(bool, flags))
    return found


def read_to(connection: sa.Connection, paths: Sequence[str]) -> dict[str, ReadTo]:
    """How far these segments were taken up, for the run where that is least; unknown segments are left out."""
    found = connection.execute(_READ_TO, {"own_paths": list(paths)})
    return {path: ReadTo(end, *map(bool, flags)) for path, end, *flags in found}


def journals_named(connection: sa.Connection, names: AbstractSet[str]) -> set[str]:
    """The paths of the journals of any run that have one of these file names. Reads the paths of all journals."""
    every = connection.execute(_EVERY_PATH).scalars()
    return {path for path in every if path.rpartition("/")[2] in names}


def runs_told(connection: sa.Connection, paths: Sequence[str]) -> list[str]:
    """The names of the runs that these journals have events of."""
    return sorted(connection.execute(_RUNS_TOLD, {"own_paths": list(paths)}).scalars())


def set_read_to(connection: sa.Connection, ends: Mapping[str, ReadTo], run_ids: Mapping[str, Iterable[int]]) -> None:
    """Record how far segments were read. `run_ids` has the runs with events in each segment."""
    if ends:
        connection.execute(_SET_READ_TO, [{"own_path": path, **_values(to)} for path, to in ends.items()])
    rows = [{"run_id": run, "path": path, **_values(to)} for path, to in ends.items() for run in run_ids.get(path, ())]
    if rows:
        connection.execute(_told(connection.dialect.name), rows)


def _values(to: ReadTo) -> dict[str, Any]:
    return {"read_to": to.end, "by_summary": to.by_summary, "is_copy": to.is_copy}


def move_read_to(connection: sa.Connection, told: AbstractSet[str], path: str, begin: int, end: int) -> bool:
    """Record that the catalog now has the bytes from `begin` to `end` of a segment, which are about the runs `told`.

    False, and nothing is recorded, if the catalog lacks events before them, or if they are about several runs.
    """
    if len(told) != 1:
        return False
    (run,) = told
    if begin == 0:
        row = {"own_run": run, "path": path, **_values(ReadTo(end))}
        return connection.execute(_begun(connection.dialect.name), row).first() is not None
    place = {"own_run": run, "own_path": path, "own_begin": begin, "own_end": end}
    return connection.execute(_WENT_ON, place).rowcount > 0


class Unwritten(NamedTuple):
    """A line that the journal of a directory lacks. `home` identifies the directory."""

    id: str
    directory: str
    home: Mapping[str, Any]
    line: Mapping[str, Any]


def add_unwritten(
    connection: sa.Connection, directory: str, home: Mapping[str, Any], lines: Collection[Mapping[str, Any]]
) -> list[str]:
    """Keep lines that the journal of a directory could not take; return their ids."""
    ids = {derived_id(directory, line): line for line in lines}
    of_runs = {run: add_run(connection, run) for run in {line["run"] for line in lines}}
    told = {"directory": directory, "home": home}
    rows = [{"run_id": of_runs[line["run"]], "id": each, "line": line, **told} for each, line in ids.items()]
    connection.execute(insert(connection.dialect.name, unwritten).on_conflict_do_nothing(), rows)
    return list(ids)


def unwritten_lines(connection: sa.Connection, run: int | None, ids: Iterable[str] = ()) -> list[Unwritten]:
    """The lines that journals lack: those about a run (None: of none), and those with these ids."""
    found = connection.execute(_UNWRITTEN, {"own_run": run, "own_ids": list(ids)})
    # A user with the right to write rows of one run must not add lines about another run.
    return [Unwritten(line_id, *of) for line_id, *of, run in found if of[-1].get("run") == run]


def set_written(connection: sa.Connection, ids: Sequence[str]) -> None:
    """These lines are in a journal now."""
    connection.execute(_SET_WRITTEN, {"own_ids": list(ids)})


_UNWRITTEN = (
    sa.select(unwritten.c.id, unwritten.c.directory, unwritten.c.home, unwritten.c.line, runs.c.name)
    .join(runs)
    .where((runs.c.id == sa.bindparam("own_run")) | any_of(unwritten.c.id, "own_ids"))
)
_JOURNALS_OF = sa.select(journals.c.path, journals.c.read_to, journals.c.by_summary).where(
    journals.c.run_id == sa.bindparam("own_run"), sa.not_(journals.c.is_copy)
)
_READ_TO = (
    sa.select(
        journals.c.path,
        sa.func.min(journals.c.read_to),
        sa.func.max(sa.case((journals.c.by_summary, 1), else_=0)),
        sa.func.max(sa.case((journals.c.is_copy, 1), else_=0)),
    )
    .group_by(journals.c.path)
    .where(any_of(journals.c.path, "own_paths"))
)
_RUNS_TOLD = sa.select(runs.c.name).distinct().join(journals).where(any_of(journals.c.path, "own_paths"))
_EVERY_PATH = sa.select(journals.c.path).distinct()
_SET_WRITTEN = unwritten.delete().where(any_of(unwritten.c.id, "own_ids"))
_SET_READ_TO = journals.update().where(journals.c.path == sa.bindparam("own_path"))
_RUN_ID = sa.select(runs.c.id).where(runs.c.name == sa.bindparam("own_run")).scalar_subquery()


@cache
def _told(dialect: str) -> Any:
    return insert(dialect, journals).on_conflict_do_nothing()


@cache
def _begun(dialect: str) -> Any:
    statement = insert(dialect, journals).values(run_id=_RUN_ID).on_conflict_do_nothing()
    return statement.returning(journals.c.path)


_END = sa.bindparam("own_end", type_=sa.BigInteger)
_WENT_ON = (
    journals.update()
    .where(
        journals.c.run_id == _RUN_ID,
        journals.c.path == sa.bindparam("own_path"),
        journals.c.read_to >= sa.bindparam("own_begin"),
    )
    .values(read_to=sa.case((journals.c.read_to > _END, journals.c.read_to), else_=_END))
)
"""Built once, like all statements that every record or start needs: building takes longer than running."""
