"""Queries for directories and files of any run: to find what may be the same file under another path."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import rows
from ckptstore.catalog.any_of import any_of, one_of
from ckptstore.catalog.reads import GIVEN_UP
from ckptstore.catalog.rows import many
from ckptstore.catalog.tables import FILES_OF_LAUNCHES, FILES_OF_RUNS, checkpoints, launches, runs, saves, sources
from ckptstore.core.model import FileState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptstore.core.model import Checkpoint, LaunchKey

_LIVE = FileState.COMPLETE.value, FileState.IN_PROGRESS.value, FileState.DAMAGED.value
_IS_LIVE = one_of(checkpoints.c.state, *_LIVE)
_PATH = checkpoints.c.path
_DIRECTORY = sa.func.rtrim(_PATH, sa.func.replace(_PATH, "/", ""), type_=sa.Text)  # up to the last slash, on either one


class Recorded(NamedTuple):
    """A file that is there, as far as the catalog knows, and of no run that was given up.

    `mtime_ns` is None while it is being written.
    """

    id: str
    run: str
    launch: str
    global_step: int
    path: str
    size: int | None
    mtime_ns: int | None


_RECORDED = (
    sa.select(
        checkpoints.c.id,
        runs.c.name,
        launches.c.name,
        saves.c.global_step,
        _PATH,
        checkpoints.c.size,
        checkpoints.c.mtime_ns,
    )
    .select_from(FILES_OF_RUNS)
    .where(_IS_LIVE, runs.c.id.not_in(GIVEN_UP))
)


def every_directory(connection: sa.Connection) -> set[str]:
    """The directories that a rank of any run saves to, and those of all files that are there or in the trash."""
    return {path.rstrip("/") or "/" for path in connection.execute(_every_directory()).scalars()}


def of_live_files(connection: sa.Connection, run: int) -> list[tuple[str, str]]:
    """A file of each directory with files of a run that are there, and the directory's identity (empty: not known)."""
    found = connection.execute(_of_live_files(), {"own_run": run})
    return [(path, identity or "") for path, identity in found]


def of_identities(connection: sa.Connection, identities: Iterable[str]) -> set[str]:
    """The paths under which directories with one of these identities were seen."""
    found = connection.execute(_of_identities(), {"own_ids": sorted(identities)}).scalars()
    return {path.rstrip("/") or "/" for path in found}


def files_after(connection: sa.Connection, directory: str, launch: LaunchKey, step: int) -> list[Checkpoint]:
    """The files of a launch in or below a directory that are there, whole, and of a later step."""
    asked = {"own_prefix": f"{directory.rstrip('/')}/", "own_launch": launch, "own_step": step}
    return list(rows.files(connection.execute(_files_after(), asked)))


def files_in(connection: sa.Connection, some: Iterable[str]) -> list[Checkpoint]:
    """All records of files in these directories, of any run."""
    ends = [f"{directory.rstrip('/')}/" for directory in some]
    return list(rows.files(connection.execute(_files_in(), {"own_ends": ends}))) if ends else []


def below(connection: sa.Connection, directory: str) -> set[str]:
    """The paths below a directory of files of any run that are there, as far as the catalog knows."""
    return set(connection.execute(_below(), {"own_prefix": f"{directory.rstrip('/')}/"}).scalars())


def written_at(connection: sa.Connection, moments: Iterable[int]) -> list[Checkpoint]:
    """The complete files of any run that were written at one of these times, in nanoseconds since 1970."""
    return list(rows.files(connection.execute(_complete_of("mtime_ns"), {"own_values": list(moments)})))


def of_sizes(connection: sa.Connection, sizes: Iterable[int]) -> list[Checkpoint]:
    """The complete files of any run that have one of these sizes."""
    return list(rows.files(connection.execute(_complete_of("size"), {"own_values": list(sizes)})))


def written_within(connection: sa.Connection, begin_ns: int, end_ns: int) -> Iterator[Recorded]:
    """The files of any run that are there and were written in that time, in nanoseconds since 1970, or are just now."""
    found = connection.execute(_written_within(), {"own_begin": begin_ns, "own_end": end_ns})
    return (Recorded._make(row) for row in many(found))


def at_paths(connection: sa.Connection, paths: Iterable[str]) -> Iterator[Recorded]:
    """The present files with one of these paths, of any run."""
    found = connection.execute(_at_paths(), {"own_paths": list(paths)})
    return (Recorded._make(row) for row in many(found))


def at_the_paths_of(connection: sa.Connection, ids: Iterable[str]) -> Iterator[Recorded]:
    """Other present files, of any run, that may be the same file under a path of one of these.

    Their times do not tell: a look at the one file may have written a new one to one of its records only. Where sizes
    or digests are known and differ, the one was written over the other.
    """
    found = connection.execute(_at_the_paths_of(), {"own_ids": list(ids)})
    return (Recorded._make(row) for row in many(found))


# Each statement is made once, when it is first asked: making one costs more than asking.


def _is_below() -> sa.ColumnElement[bool]:
    prefix = sa.bindparam("own_prefix", type_=sa.String)
    return sa.func.substr(_PATH, 1, sa.func.length(prefix)) == prefix


@cache
def _every_directory() -> Any:
    there = one_of(checkpoints.c.state, *_LIVE, FileState.TRASHED.value)
    return sa.union(sa.select(_DIRECTORY).where(there), sa.select(sources.c.directory))


@cache
def _of_live_files() -> sa.Select[Any]:
    return (
        sa.select(sa.func.min(_PATH), checkpoints.c.directory_id)
        .select_from(FILES_OF_LAUNCHES)
        .where(launches.c.run_id == sa.bindparam("own_run"), _IS_LIVE)
        .group_by(_DIRECTORY, checkpoints.c.directory_id)
    )


@cache
def _of_identities() -> Any:
    of_files = sa.select(_DIRECTORY).where(any_of(checkpoints.c.directory_id, "own_ids"))
    return sa.union(of_files, sa.select(sources.c.directory).where(any_of(sources.c.directory_id, "own_ids")))


@cache
def _files_after() -> sa.Select[Any]:
    later = (saves.c.launch_id == sa.bindparam("own_launch")) & (saves.c.global_step > sa.bindparam("own_step"))
    return rows.file_query().where(later, _is_below(), _IS_LIVE, checkpoints.c.size.is_not(None))


@cache
def _files_in() -> sa.Select[Any]:
    return rows.file_query().where(any_of(_DIRECTORY, "own_ends"))


@cache
def _below() -> sa.Select[Any]:
    return sa.select(_PATH).where(_is_below(), _IS_LIVE)


@cache
def _complete_of(column: str) -> sa.Select[Any]:
    is_complete = checkpoints.c.state == FileState.COMPLETE.value
    return rows.file_query().where(is_complete, any_of(checkpoints.c[column], "own_values"))


@cache
def _written_within() -> sa.Select[Any]:
    when = checkpoints.c.mtime_ns.between(sa.bindparam("own_begin"), sa.bindparam("own_end"))
    return _RECORDED.where(when | checkpoints.c.mtime_ns.is_(None))


@cache
def _at_paths() -> sa.Select[Any]:
    return _RECORDED.where(any_of(_PATH, "own_paths"))


@cache
def _at_the_paths_of() -> sa.Select[Any]:
    own = checkpoints.alias()
    return _RECORDED.join(own, (own.c.path == _PATH) & (own.c.id != checkpoints.c.id)).where(
        any_of(own.c.id, "own_ids"),
        *(
            (mine == other) | mine.is_(None) | other.is_(None)
            for mine, other in ((own.c.size, checkpoints.c.size), (own.c.digest, checkpoints.c.digest))
        ),
    )
