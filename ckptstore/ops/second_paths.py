"""Directories that the catalog knows under another path: a scan would take their files in a second time.

As through a link above them, or a file system that is mounted in two places. Directories are compared, by device and
inode, not paths: that sees through both, and through links inside the tree. A second path may be in the catalog all the
same: a run's disk was moved, a link left in its place, and the next launch saves under the new path.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog import directories, reads
from ckptstore.core.model import Kind
from ckptstore.core.naming import above_ttp
from ckptstore.errors import RefusedError
from ckptstore.ops.authorship import wrote
from ckptstore.storage import identity
from ckptstore.storage.waiting import for_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.reads import Source


def known_elsewhere(database: Database, root: str, paths: Iterable[str], recorded: AbstractSet[str]) -> dict[str, str]:
    """Which of the paths below a root are of files that have another path too, and may not be taken in; and why.

    The catalog knows the file under the other one, or a rank that saves there will record it, or it is among these
    paths too. What is `recorded` under its own is not asked for. Raises `RefusedError` as `check` does.
    """
    every = set(paths)
    homes = {home for path in every for home in _homes(path)}
    others = check(database, root, homes)
    twice = {path: list(_other_paths(path, others)) for path in every - recorded} if others else {}
    twice = {path: found for path, found in twice.items() if found}
    if not twice:
        return {}
    with database.read() as connection:
        known = reads.files_at_paths(connection, sorted({each.path for found in twice.values() for each in found}))
        elsewhere = sorted({each.home for found in twice.values() for each in found})
        saving: dict[str, list[Source]] = defaultdict(list)
        for run in sorted(directories.runs_that_save_in(connection, elsewhere)):
            for source in reads.sources_of(connection, run):
                saving[source.directory].append(source)
    reasons: dict[str, str] = {}
    for path, found in sorted(twice.items()):
        for other in found:
            if other.path in known:
                reasons[path] = f"it is {other.path}, of run {known[other.path][0].run!r}"
            elif any(other.is_written_by(source) for source in saving[other.home]):
                reasons[path] = f"it is {other.path}, where a rank saves"
            elif other.path in every and other.path < path:
                reasons[path] = f"it is {other.path}"
    return reasons


def check(database: Database, root: str, homes: AbstractSet[str]) -> Mapping[str, tuple[str, ...]]:
    """The other paths of these directories, by directory: those in the catalog, and those among them.

    Raises `RefusedError` where the catalog knows some under other paths, and none of those with several under its own:
    the whole tree has another path then, by which to call it. Each directory of the catalog is looked at once, however
    many files it has; one that is not there is no other path of anything.
    """
    with database.read() as connection:
        known = directories.every_directory(connection)
    paths = sorted(known | homes)
    same: dict[identity.Identity, list[str]] = defaultdict(list)
    for path, what in zip(paths, for_each(identity.of_directory, paths), strict=True):
        if what is not None:
            same[what].append(path)
    several = [some for some in same.values() if len(some) > 1]
    others = {home: tuple(path for path in some if path != home) for some in several for home in some if home in homes}
    second = {home: path for home, found in others.items() for path in found if path in known}
    if second and not any(home in known for home in others):
        home = min(second)
        with database.read() as connection:
            run = directories.runs_in(connection, second[home])[0]
        raise RefusedError(
            f"{home} is {second[home]}, which the catalog knows of run {run!r}: its files would count as two",
            f"scan {_instead(root, home, second[home])}, it is the same",
        )
    return others


@dataclass(frozen=True)
class _Other:
    """Another path of a file: in the directory `home`; `by_ttp`: in a directory of TTP that is there."""

    home: str
    path: str
    by_ttp: bool

    def is_written_by(self, source: Source) -> bool:
        """Whether a rank that saves in the directory will record the file, if it has not yet."""
        return (source.kind is Kind.TTP) is self.by_ttp and wrote(source, self.path.rpartition("/")[2])


def _homes(path: str) -> Iterator[str]:
    """The directory that a file is in, and for one of TTP that above, where its rank saves."""
    yield path.rpartition("/")[0] or "/"
    above = above_ttp(path)
    if above:
        yield above


def _other_paths(path: str, others: Mapping[str, tuple[str, ...]]) -> Iterator[_Other]:
    for number, home in enumerate(_homes(path)):
        inside = path[len(home.rstrip("/")) :]
        for other in others.get(home, ()):
            yield _Other(other, f"{other.rstrip('/')}{inside}", by_ttp=bool(number))


def _instead(root: str, home: str, known: str) -> str:
    """What to scan instead of the root: a directory of it is known under another path."""
    inside = home[len(root.rstrip("/")) :]
    return (known.removesuffix(inside) or "/") if known.endswith(inside) else known
