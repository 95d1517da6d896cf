"""Queries for directories and files of any run: to find what may be the same file under another path."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import rows
from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.rows import many
from ckptstore.catalog.tables import FILES_OF_RUNS, checkpoints, launches, runs, saves, sources
from ckptstore.core.model import FileState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptstore.core.model import Checkpoint, LaunchKey

_LIVE = [FileState.COMPLETE.value, FileState.IN_PROGRESS.value, FileState.DAMAGED.value]
_IS_LIVE = checkpoints.c.state.in_(_LIVE)
_PATH = checkpoints.c.path
_DIRECTORY = sa.func.rtrim(_PATH, sa.func.replace(_PATH, "/", ""), type_=sa.Text)  # up to the last slash, on either one


class Recorded(NamedTuple):
    """A file that is there, as far as the catalog knows; `mtime_ns` is None while it is being written."""

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
    .where(_IS_LIVE)
)


def every_directory(connection: sa.Connection) -> set[str]:
    """The directories that a rank of any run saves to, and those of all files that are there or in the trash."""
    there = checkpoints.c.state.in_([*_LIVE, FileState.TRASHED.value])
    of_files = connection.execute(sa.select(_DIRECTORY).where(there).distinct()).scalars()
    of_ranks = connection.execute(sa.select(sources.c.directory).distinct()).scalars()
    return {path.rstrip("/") or "/" for path in (*of_files, *of_ranks)}


def files_after(connection: sa.Connection, directory: str, launch: LaunchKey, step: int) -> list[Checkpoint]:
    """The files of a launch in or below a directory that are there, whole, and of a later step."""
    below = sa.func.substr(_PATH, 1, len(directory.rstrip("/")) + 1) == f"{directory.rstrip('/')}/"
    later = (saves.c.launch_id == launch) & (saves.c.global_step > step)
    query = rows.file_query().where(later, below, checkpoints.c.state.in_(_LIVE), checkpoints.c.size.is_not(None))
    return list(rows.files(connection.execute(query)))


def files_in(connection: sa.Connection, some: Iterable[str]) -> list[Checkpoint]:
    """What was ever recorded of files in these directories, of whatever run."""
    ends = [f"{directory.rstrip('/')}/" for directory in some]
    chosen = rows.file_query().where(any_of(_DIRECTORY, ends))
    return list(rows.files(connection.execute(chosen))) if ends else []


def below(connection: sa.Connection, directory: str) -> set[str]:
    """The paths below a directory of files of any run that are there, as far as the catalog knows."""
    prefix = f"{directory.rstrip('/')}/"
    is_below = sa.func.substr(_PATH, 1, len(prefix)) == prefix
    return set(connection.execute(sa.select(_PATH).where(is_below, _IS_LIVE)).scalars())


def written_at(connection: sa.Connection, moments: Iterable[int]) -> list[Checkpoint]:
    """The complete files of any run that were written at one of these times, in nanoseconds since 1970."""
    is_complete = checkpoints.c.state == FileState.COMPLETE.value
    chosen = rows.file_query().where(is_complete, any_of(checkpoints.c.mtime_ns, moments))
    return list(rows.files(connection.execute(chosen)))


def of_sizes(connection: sa.Connection, sizes: Iterable[int]) -> list[Checkpoint]:
    """The complete files of any run that have one of these sizes."""
    is_complete = checkpoints.c.state == FileState.COMPLETE.value
    chosen = rows.file_query().where(is_complete, any_of(checkpoints.c.size, sizes))
    return list(rows.files(connection.execute(chosen)))


def written_within(connection: sa.Connection, begin_ns: int, end_ns: int) -> Iterator[Recorded]:
    """The files of any run that are there and were written in that time, in nanoseconds since 1970, or are just now."""
    when = checkpoints.c.mtime_ns.between(begin_ns, end_ns) | checkpoints.c.mtime_ns.is_(None)
    found = connection.execute(_RECORDED.where(when))
    return (Recorded._make(row) for row in many(found))


def at_paths(connection: sa.Connection, paths: Iterable[str]) -> Iterator[Recorded]:
    """What is there by one of these paths, of whatever run."""
    return (Recorded._make(row) for row in many(connection.execute(_RECORDED.where(any_of(_PATH, paths)))))


def at_the_paths_of(connection: sa.Connection, ids: Iterable[str]) -> Iterator[Recorded]:
    """The other files that are there by a path of one of these, of whatever run, and that may be the same file.

    Their times do not tell: a look at the one file may have written a new one to one of its records only. Where sizes
    or digests are known and differ, the one was written over the other.
    """
    own = checkpoints.alias()
    query = _RECORDED.join(own, (own.c.path == _PATH) & (own.c.id != checkpoints.c.id)).where(
        any_of(own.c.id, ids),
        *(
            (mine == other) | mine.is_(None) | other.is_(None)
            for mine, other in ((own.c.size, checkpoints.c.size), (own.c.digest, checkpoints.c.digest))
        ),
    )
    return (Recorded._make(row) for row in many(connection.execute(query)))
