"""Queries for directories and files of any run. Most look for a file that may be recorded under another path too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import rows
from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.reads import GIVEN_UP
from ckptstore.catalog.rows import many
from ckptstore.catalog.tables import (
    FILES_OF_LAUNCHES,
    FILES_OF_RUNS,
    IS_THERE,
    REMOVED_PATH,
    checkpoints,
    launches,
    runs,
    saves,
    sources,
    trash,
)
from ckptstore.core.model import FileState, Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptstore.core.model import Checkpoint, LaunchKey

_PATH = checkpoints.c.path
_DIRECTORY = sa.func.rtrim(_PATH, sa.func.replace(_PATH, "/", ""), type_=sa.Text)  # up to the last slash


class Recorded(NamedTuple):
    """A file that is there, as far as the catalog knows, and whose run is not among `reads.GIVEN_UP`.

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
    .where(IS_THERE, runs.c.id.not_in(GIVEN_UP))
)


def every_directory(connection: sa.Connection) -> set[str]:
    """The directories that a rank of any run saves to, and those of all files that are there or in the trash."""
    there = IS_THERE | (checkpoints.c.state == FileState.TRASHED.value)
    query = sa.union(sa.select(_DIRECTORY).where(there), sa.select(sources.c.directory))
    return {path.rstrip("/") or "/" for path in connection.execute(query).scalars()}


def of_live_files(connection: sa.Connection, run: int) -> list[tuple[str, str]]:
    """Of each directory with present files of a run: the path of one, and the directory's identity (empty: unknown)."""
    query = (
        sa.select(sa.func.min(_PATH), checkpoints.c.directory_id)
        .select_from(FILES_OF_LAUNCHES)
        .where(launches.c.run_id == run, IS_THERE)
        .group_by(_DIRECTORY, checkpoints.c.directory_id)
    )
    return [(path, identity or "") for path, identity in connection.execute(query)]


def of_identities(connection: sa.Connection, identities: Iterable[str]) -> dict[str, set[str]]:
    """The paths under which directories with these identities were seen, by identity. Reads the paths of all files."""
    of_files, of_sources = checkpoints.c.directory_id, sources.c.directory_id
    query = sa.union(
        sa.select(of_files, _DIRECTORY).where(any_of(of_files, "own_ids")),
        sa.select(of_sources, sources.c.directory).where(any_of(of_sources, "own_ids")),
    )
    found: dict[str, set[str]] = {}
    for identity, path in connection.execute(query, {"own_ids": sorted(identities)}):
        found.setdefault(identity, set()).add(path.rstrip("/") or "/")
    return found


def files_after(connection: sa.Connection, directory: str, launch: LaunchKey, step: int) -> list[Checkpoint]:
    """The present, finished files of a launch in or below a directory, of steps after `step`."""
    later = (saves.c.launch_id == launch) & (saves.c.global_step > step)
    query = rows.FILE_QUERY.where(later, _is_below(directory), IS_THERE, checkpoints.c.size.is_not(None))
    return list(rows.files(connection.execute(query)))


def files_in(connection: sa.Connection, some: Iterable[str]) -> list[Checkpoint]:
    """All records of files in these directories, of any run."""
    ends = [f"{directory.rstrip('/')}/" for directory in some]
    query = rows.FILE_QUERY.where(any_of(_DIRECTORY, "own_ends"))
    return list(rows.files(connection.execute(query, {"own_ends": ends}))) if ends else []


def files_below(connection: sa.Connection, directory: str) -> list[Checkpoint]:
    """All records of files below a directory, of any run."""
    return list(rows.files(connection.execute(rows.FILE_QUERY.where(_is_below(directory)))))


def below(connection: sa.Connection, directory: str) -> set[str]:
    """The paths of the present files of any run below a directory, as far as the catalog knows."""
    return set(connection.execute(sa.select(_PATH).where(_is_below(directory), IS_THERE)).scalars())


def there_or_removed(connection: sa.Connection, ids: Iterable[str]) -> list[Checkpoint]:
    """Those of these files that are complete, and those that gc moved to the trash or deleted, as trashed.

    In a tree that was moved, the records have other ids than those in the trash: their paths tell.
    """
    asked = {"own_ids": list(ids)}
    # Subqueries without a reference to the outer row: else the trash is read once for each file.
    place = sa.tuple_(checkpoints.c.path, checkpoints.c.size, checkpoints.c.mtime_ns)
    went = checkpoints.c.id.in_(_REMOVED_IDS) | place.in_(_REMOVED)
    of_them = any_of(checkpoints.c.id, "own_ids")
    removed = set(connection.execute(sa.select(checkpoints.c.id).where(of_them, went), asked).scalars())
    found = rows.files(connection.execute(rows.FILE_QUERY.where(of_them), asked))
    trashed = (replace(file, state=FileState.TRASHED) if file.id in removed else file for file in found)
    return [file for file in trashed if file.state in (FileState.COMPLETE, FileState.TRASHED)]


_IS_AWAY = trash.c.wanted != Location.HOME.value
_REMOVED_IDS = sa.select(trash.c.checkpoint_id).where(trash.c.checkpoint_id.is_not(None), _IS_AWAY)
_REMOVED = sa.select(REMOVED_PATH, trash.c.size, trash.c.mtime_ns).where(_IS_AWAY)


def of_sizes(connection: sa.Connection, sizes: Iterable[int]) -> list[Checkpoint]:
    """The complete and the damaged files of any run that have one of these sizes."""
    is_there = checkpoints.c.state.in_((FileState.COMPLETE.value, FileState.DAMAGED.value))
    query = rows.FILE_QUERY.where(is_there, any_of(checkpoints.c.size, "own_values"))
    return list(rows.files(connection.execute(query, {"own_values": list(sizes)})))


def quarantined_of_sizes(connection: sa.Connection, sizes: Iterable[int]) -> list[Checkpoint]:
    """The files of quarantined states, of any run, there or gone, that have a digest and one of these sizes."""
    is_bad = checkpoints.c.quarantine.is_not(None) & checkpoints.c.digest.is_not(None)
    query = rows.FILE_QUERY.where(is_bad, any_of(checkpoints.c.size, "own_values"))
    return list(rows.files(connection.execute(query, {"own_values": list(sizes)})))


def written_within(connection: sa.Connection, begin_ns: int, end_ns: int) -> Iterator[Recorded]:
    """The present files of any run written between two times, in nanoseconds since 1970, or being written now."""
    when = checkpoints.c.mtime_ns.between(begin_ns, end_ns) | checkpoints.c.mtime_ns.is_(None)
    return map(Recorded._make, many(connection.execute(_RECORDED.where(when))))


def at_paths(connection: sa.Connection, paths: Iterable[str]) -> Iterator[Recorded]:
    """The present files with one of these paths, of any run."""
    query = _RECORDED.where(any_of(_PATH, "own_paths"))
    return map(Recorded._make, many(connection.execute(query, {"own_paths": list(paths)})))


def at_the_paths_of(connection: sa.Connection, ids: Iterable[str]) -> Iterator[Recorded]:
    """Other records of present files, of any run, at the paths of these files: they may be of the same file.

    Modification times are not compared: a look at the file may have updated only one of its records. If sizes or
    digests are known and differ, one file was written over the other.
    """
    own = checkpoints.alias()
    query = _RECORDED.join(own, (own.c.path == _PATH) & (own.c.id != checkpoints.c.id)).where(
        any_of(own.c.id, "own_ids"),
        *(
            (mine == other) | mine.is_(None) | other.is_(None)
            for mine, other in ((own.c.size, checkpoints.c.size), (own.c.digest, checkpoints.c.digest))
        ),
    )
    return map(Recorded._make, many(connection.execute(query, {"own_ids": list(ids)})))


def _is_below(directory: str) -> sa.ColumnElement[bool]:
    prefix = f"{directory.rstrip('/')}/"
    return sa.func.substr(_PATH, 1, sa.func.length(prefix)) == prefix
