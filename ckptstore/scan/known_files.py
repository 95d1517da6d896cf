"""Finds the records of the files that a scan sees, and the unrecorded files that belong to a run with a registrar.

A directory may be emptied and filled again. So the record of a deleted file does not apply to a new file at its path.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.catalog import directories, journals, reads
from ckptstore.core.classify import Named, What
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.model import SCANNED, Content, FileState, Kind, Skipped
from ckptstore.core.naming import FOREIGN, above_save, is_within
from ckptstore.core.sighting import Sighting, is_as_recorded
from ckptstore.disk import files
from ckptstore.disk.files import real_directory
from ckptstore.disk.presence import absence_beside
from ckptstore.disk.walk import Seen
from ckptstore.evidence.reconstruct import rank_of
from ckptstore.evidence.writers import Writers, wrote
from ckptstore.journal.jsonl import directory_of
from ckptstore.scan.experiments import are_several, home_of
from ckptstore.scan.tree import Tree, read_files, sighted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.model import Checkpoint, Source
    from ckptstore.evidence.unregistered import FoundFile
    from ckptstore.scan.experiments import Home

_IN_TRASH = (
    "gc moved the file recorded at this path to the trash: move this one to a directory of its own and scan that, or "
    "empty the trash with {purge} and scan again"
)
_MAY_BE_A_COPY = (
    "it may be a copy of the recorded file: it has the same size and another time, and nothing proves that its "
    "contents differ. Copy it again with its time (cp -p), or move it to a directory of its own and scan that"
)


@dataclass
class KnownFiles:
    """The records of a tree, by path."""

    known: dict[str, Checkpoint] = field(default_factory=dict)  # of this run
    others: dict[str, str] = field(default_factory=dict)  # the run of each path that is another run's
    owners: dict[str, str] = field(default_factory=dict)  # the run of every path that was ever recorded
    replaced: set[str] = field(default_factory=set)  # of `known`: another file is there now, and is judged as a new one
    doubtful: set[str] = field(default_factory=set)  # of `known`: another file may be there
    skipped: list[Skipped] = field(default_factory=list)  # why `doubtful` and `others` are not taken in
    below: list[Checkpoint] = field(default_factory=list)  # all records of files there
    # Records of a directory that was at the path before: the present one has a file of the same name.
    left_behind: list[Checkpoint] = field(default_factory=list)

    def leave_out(self, paths: Collection[str]) -> None:
        """Drop the records of these paths: they are from a copied journal."""
        for path in paths:
            self.known.pop(path, None)
            self.others.pop(path, None)
        self.replaced.difference_update(paths)
        self.skipped = [each for each in self.skipped if each.path not in paths]


def recorded_below(connection: Connection, root: str) -> tuple[list[Checkpoint], dict[str, Checkpoint]]:
    """All records below a directory; and, by their paths there, files recorded in a directory that is a link to it now.

    The data of a run may have been moved, and a link left in its place.
    """
    moved = {}
    for directory in directories.every_directory(connection):
        real = real_directory(directory)
        if real != directory and is_within(real, root):
            moved[directory] = real
    elsewhere = {}
    for file in directories.files_in(connection, moved):
        directory, _, name = file.path.rpartition("/")
        elsewhere[f"{moved[directory].rstrip('/')}/{name}"] = file
    return directories.files_below(connection, root), elsewhere


def known_files(
    database: Database, run: str, tree: Tree, left_out: Iterable[Checkpoint], *, is_named: bool
) -> KnownFiles:
    """The records below the root of a tree, compared with the files that are there.

    `left_out` are the records that journals have and the catalog does not take: those of other runs count here.
    If the user names the run, files of runs that were only scanned and then forgotten can be adopted again. This is how
    a wrong scan is corrected.
    """
    with database.read() as connection:
        recorded, moved = recorded_below(connection, tree.root)
        free = reads.given_up(connection) - {run} if is_named else ()
    recorded = [file for file in recorded if file.run not in free]
    moved = {path: file for path, file in moved.items() if file.run not in free}
    found = KnownFiles(below=recorded, left_behind=_left_behind(recorded))
    recorded = [*recorded, *(file for file in left_out if file.run not in {run, *free})]
    others: dict[str, Checkpoint] = {}
    is_left = {file.id for file in found.left_behind}
    for file in (each for each in recorded if each.id not in is_left):
        here = tree.seen(file.path)
        chosen = found.known if file.run == run else others
        before = chosen.get(file.path)
        if before is None or _weight(before, here) <= min(_weight(file, here), 2):
            chosen[file.path] = file
    found.owners = {path: file.run for path, file in others.items()} | dict.fromkeys(found.known, run)
    for path, file in others.items():
        here = tree.seen(file.path)
        own = found.known.get(path)
        if _claims(file, here) and (own is None or not _claims(own, here)):
            found.known.pop(path, None)
            found.others[path] = file.run
            if here is not None:
                found.skipped.append(Skipped(path, _not_taken(file, here) or f"it is of run {file.run!r}"))
    _compare_with_disk(found, tree)
    elsewhere = {path: file for path, file in moved.items() if path in tree.checkpoints and path not in found.owners}
    found.others |= {path: file.run for path, file in elsewhere.items()}
    found.skipped += [Skipped(path, f"it is {file.path}, of run {file.run!r}") for path, file in elsewhere.items()]
    return found


def _left_behind(recorded: Iterable[Checkpoint]) -> list[Checkpoint]:
    """The complete files that are not in the present directory at their path, where that has a file of the name."""
    at_path = grouped((file.path, file) for file in recorded if file.state is FileState.COMPLETE and file.directory_id)
    found = []
    for some in at_path.values():
        if len({file.directory_id for file in some}) > 1:
            absent = [file for file in some if absence_beside(file)]
            found += absent if len(absent) < len(some) else []
    return found


def _compare_with_disk(found: KnownFiles, tree: Tree) -> None:
    """Note which of the known paths have another file, or one that may be the recorded file or not."""
    for path, file in list(found.known.items()):
        here = tree.seen(file.path)
        if here is None:
            continue
        sighting = None if _claims(file, here) else sighted(file, here)
        if sighting is Sighting.SAME:  # it was copied back without its time
            found.known[path] = replace(file, mtime_ns=here.mtime_ns)
        elif sighting is not None and _is_another(file, sighting):
            found.replaced.add(path)
        elif reason := _not_taken(file, here):
            found.doubtful.add(path)
            found.skipped.append(Skipped(path, reason))


def _claims(file: Checkpoint, here: Seen | None) -> bool:
    """Whether a record applies to its path: not if the recorded file is gone, and another one is there."""
    return here is None or not file.state.is_gone or file.size is None or is_as_recorded(file, here.size, here.mtime_ns)


def _weight(file: Checkpoint, here: Seen | None) -> int:
    """The weight of a record at its path: the highest for a live file, then in the trash, then back, then gone."""
    if file.state.is_gone:
        return int(here is not None and is_as_recorded(file, here.size, here.mtime_ns))
    return 2 if file.state is FileState.TRASHED else 3


def _is_another(file: Checkpoint, sighting: Sighting) -> bool:
    """Whether a file that differs from its record is proven to be another file, and not a copy with another time.

    Such a copy, if it was adopted, would look like a launch that went back to an older state. Files that a scan
    recorded have no digest: for them another time is enough, and they are judged by their headers alone.
    """
    return sighting in (Sighting.CUT, Sighting.ANOTHER) or (
        sighting is Sighting.CHANGED and file.launch.startswith(SCANNED)
    )


def _not_taken(file: Checkpoint, here: Seen) -> str:
    """Why the file at the path of a record is not adopted; empty if it is the recorded one."""
    if file.state is FileState.TRASHED and not is_as_recorded(file, here.size, here.mtime_ns):
        return _IN_TRASH.format(purge=Command("purge", file.run, "--now"))
    return "" if _claims(file, here) else _MAY_BE_A_COPY


def newest_elsewhere(database: Database, run_id: int | None, tree: Tree, found: Iterable[FoundFile]) -> list[FoundFile]:
    """The run's newest readable file outside the tree, for each rank and kind that the found files have.

    If none of them names a rank, all count as files of rank 0.
    """
    ranks = {(rank_of(file), file.kind) for file in found}
    is_unranked = all(rank is None for rank, _ in ranks)
    asked = {(0 if is_unranked else rank, kind) for rank, kind in ranks if is_unranked or rank is not None}
    if run_id is None or not asked:
        return []
    with database.read() as connection:
        files_of_run = reads.files_to_judge(connection, run_id)
    newest: dict[tuple[int, Kind], Checkpoint] = {}
    tried: set[tuple[int, Kind, str]] = set()  # only the newest of a directory: if it is gone, the others are too
    for file in sorted(files_of_run, key=lambda each: (each.mtime_ns or 0, each.path), reverse=True):
        key, home = (file.rank, file.kind), file.path.rpartition("/")[0]
        is_sound = file.state is FileState.COMPLETE and file.content is Content.FULL and file.format not in FOREIGN
        if key not in asked or key in newest or (*key, home) in tried or not is_sound or file.path in tree.checkpoints:
            continue
        tried.add((*key, home))
        here = files.facts_if_seen(file.path)
        if here is not None and is_as_recorded(file, here.size, here.mtime_ns):
            newest[key] = file
    there = Tree(tree.root)
    for file in newest.values():
        rank = None if is_unranked else file.rank
        named = Named(what=What.CHECKPOINT, kind=file.kind, format=file.format, rank=rank)
        there.checkpoints[file.path] = named, Seen(file.path.rpartition("/")[2], file.size or 0, file.mtime_ns or 0)
    read, _ = read_files(there, list(there.checkpoints))
    return [replace(file, info={}) if is_unranked else file for file in read]


def unwatched(database: Database, run_id: int | None, paths: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The paths that no registrar watches; and those that a registrar of another run watches, with the reason.

    Paths that a registrar of this run watches are in neither: reconciliation handles them, and it knows which files
    other launches may have written.
    """
    asked = list(paths)
    homes = {each for path in asked for each in (path.rpartition("/")[0], above_save(path)) if each}
    with database.read() as connection:
        announced = set() if run_id is None else {each.directory for each in reads.announced_by(connection, run_id)}
        likely = [directory for directory in announced if real_directory(directory) in homes]
        own = _Watchers(reads.sources_of(connection, run_id or 0, likely))
        others = _Watchers(reads.sources_beside(connection, run_id or 0, homes))
    free: list[str] = []
    of_others: dict[str, str] = {}
    for path in asked:
        if own.of(path) is not None:
            continue
        if (source := others.of(path)) is None:
            free.append(path)
        else:
            of_others[path] = (
                f"launch {source.launch} of run {source.run!r} saves files of this name here: a scan with "
                f"--run {source.run} takes it if it is proven; if it is not of that run, move it to a directory of its "
                "own and scan that"
            )
    return free, of_others


class _Watchers:
    """The directories that registrars watch, and the names of the files that they expect there."""

    def __init__(self, sources: Sequence[Source]) -> None:
        real = {directory: real_directory(directory) for directory in {source.directory for source in sources}}
        self._writers = Writers((real[source.directory], source) for source in sources)
        of_ttp = (source for source in reversed(sources) if source.kind is Kind.TTP)
        self._of_ttp = {real[source.directory]: source for source in of_ttp}  # each writes the same names

    def of(self, path: str) -> Source | None:
        """A source that writes files of this name to this place; None if there is none."""
        home, _, name = path.rpartition("/")
        above = self._of_ttp.get(above_save(path))
        likely = (*self._writers.of(home, name), *((above,) if above else ()))
        return next((each for each in likely if wrote(each, name)), None)


class Unowned(NamedTuple):
    """The paths that may not be adopted, and why; the unclaimed homes of the others; the keys of all claimed homes."""

    reasons: dict[str, str]
    homes: tuple[tuple[Home, str], ...]
    claimed: frozenset[str]


def is_trained(database: Database, run_id: int | None) -> bool:
    """Whether a run trains with ckptstore, and was not only scanned. Then it never takes over files of other runs."""
    with database.read() as connection:
        known = [] if run_id is None else reads.launches_of(connection, run_id)
    return any(not launch.id.startswith(SCANNED) for launch in known)


def unowned_files(
    database: Database, run: str, tree: Tree, paths: Iterable[str], recorded: KnownFiles, *, told: Iterable[str]
) -> Unowned:
    """The paths that may not be adopted without `--run`, by their directories, with the reason.

    A run continues from its newest state, and a file of another experiment could become that state. So:

    - a run that is trained with ckptstore gets only files in directories that it saves to;
    - a run that was scanned gets no files from a second directory that has the same saves as the first one;
    - no run gets files that lie among the files of another run.

    `told` are the runs that the journals of the tree name.
    """
    runs_in: dict[str, set[str]] = {}
    for path, name in recorded.owners.items():
        runs_in.setdefault(home_of(path.rpartition("/")[0], tree.root).key, set()).add(name)
    with database.read() as connection:
        own = reads.run_id(connection, run)
        for name in {run, *told, *recorded.owners.values()}:
            run_id = reads.run_id(connection, name)
            if run_id is None:
                continue
            saving = {each.directory for each in reads.announced_by(connection, run_id)}
            for directory in saving | set(map(directory_of, journals.journals_of(connection, run_id))):
                runs_in.setdefault(home_of(directory, tree.root).key, set()).add(name)
    homes = {path: tree.home(path) for path in paths}
    unclaimed = [each for each in homes.values() if each[0].key not in runs_in]
    of_run = [
        (home_of(path.rpartition("/")[0], tree.root), "part" if file.content is Content.PART else file.kind.value)
        for path, file in recorded.known.items()
    ]
    is_closed = is_trained(database, own) or (bool(of_run) and are_several([*of_run, *unclaimed]))
    reasons = {}
    for path, (home, _) in homes.items():
        there = runs_in.get(home.key, set())
        hint = f"scan {home.directory} and name its run with --run"
        if there and run not in there:
            reasons[path] = f"it lies among files of run {min(there)!r}: {hint}"
        elif not there and is_closed:
            reasons[path] = f"it is in no directory that run {run!r} saves to: {hint}"
    return Unowned(reasons, () if is_closed else tuple(unclaimed), frozenset(runs_in))
