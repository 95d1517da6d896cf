"""Recognizes the copies among the files of a tree: files with the same content as a recorded file, or as another one.

Copies must not be adopted as a launch of their own. Such a launch would look like a return to an older state, and the
states after that one would be given up.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from ckptstore.catalog import directories, reads
from ckptstore.core.classify import What
from ckptstore.core.model import SCANNED, Checkpoint, Content, FileState, Grade, Rule, Skipped, moment
from ckptstore.core.replicas import stand_alone
from ckptstore.core.sighting import Sighting
from ckptstore.disk import files
from ckptstore.evidence.launch_groups import NEAR_NS
from ckptstore.evidence.reconstruct import rank_of
from ckptstore.evidence.unregistered import ScannedLaunch, launch_id
from ckptstore.journal.copied_directories import is_original, originals_of
from ckptstore.resume.resolve import stated_layout
from ckptstore.scan.tree import sighted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.model import Launch
    from ckptstore.disk.walk import Seen
    from ckptstore.evidence.reconstruct import Stated
    from ckptstore.evidence.unregistered import FoundFile
    from ckptstore.scan.known_files import KnownFiles
    from ckptstore.scan.tree import Tree


def not_taken(copies: Mapping[str, Checkpoint]) -> list[Skipped]:
    """Copies, each with the reason why it is not adopted; given with the records of their originals."""
    return [Skipped(path, _reason(original.path, f"run {original.run!r}")) for path, original in copies.items()]


def _reason(original: str, whose: str) -> str:
    home = original.rpartition("/")[0]
    return f"a copy of files in {home}, of {whose}: to make it a run of its own, scan it with --run NEW"


def copies_of_known(
    databases: Sequence[Database],
    tree: Tree,
    recorded: KnownFiles,
    heard_before: AbstractSet[str],
    originals: Mapping[str, Sequence[str]],
) -> dict[str, Checkpoint]:
    """The files of a tree that are copies of recorded files: the record of the original, by the path of its copy.

    `databases` are the catalog that the scan plans with, and the user's catalog, which may have more runs.
    `heard_before` are the paths below the root that had a record before the journals of the tree were taken up;
    `originals` are the journals that those of the tree were copied from.
    """
    copies: dict[str, Checkpoint] = {}
    claimed = {file.path for file in recorded.below if file.state in LIVE}
    own = [
        file
        for file in recorded.below
        if (file.state in LIVE or (file.state is FileState.MOVED and file.path not in claimed))
        and not (file.state is FileState.COMPLETE and file.path in heard_before)  # the run has it: it is no copy now
        and tree.seen_of_record(file.path) is not None
    ]
    for file, other in _doubles(databases, own, originals):
        if _is_double(file, other, tree):
            copies.setdefault(file.path, other)
    sizes = {
        path: seen.size
        for path, (place, seen) in {**tree.checkpoints, **tree.foreign}.items()
        if place.what in _WHOLE and path not in recorded.owners and path not in recorded.others
    }
    for path, original in _alike(databases, tree, sizes, directories.of_sizes):
        is_new = path not in copies and original.path not in copies
        if is_new and _is_copy(path, tree.seen(path), original):
            copies[path] = original
    return copies


LIVE = (FileState.COMPLETE, FileState.DAMAGED)
# Not compared: parts have the same name at every step, and weights may equal those of a state beside them.
_WHOLE = (What.CHECKPOINT, What.OPAQUE)


def _doubles(
    databases: Sequence[Database], own: Sequence[Checkpoint], originals: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Checkpoint, Checkpoint]]:
    """Pairs of a file and the one that it was copied from: a copied journal describes the same files at other paths."""
    for database in databases:
        found = originals_of(database, own, originals)
        yield from ((file, original) for file in own for original in found.get(file.id, ()))


def _is_double(own: Checkpoint, other: Checkpoint, tree: Tree) -> bool:
    """Whether the file at the path of `own` is the one that both records describe, or that is at the other path now."""
    here = tree.seen_of_record(own.path)
    if here is None or here.size != own.size:
        return False
    return (is_original(other) and sighted(own, here) is Sighting.SAME) or files.same_bytes(own.path, other.path)


def _alike(
    databases: Sequence[Database],
    tree: Tree,
    sizes: Mapping[str, int],
    recorded: Callable[[Connection, Iterable[int]], Iterable[Checkpoint]],
) -> Iterable[tuple[str, Checkpoint]]:
    """Pairs of an unrecorded file and a recorded one of the same size and rank, and of the same name or time."""
    named: dict[tuple[int | None, int | None, object], dict[str, Checkpoint]] = defaultdict(dict)
    for database in databases if sizes else ():
        with database.read() as connection:
            for file in recorded(connection, set(sizes.values())):
                for rank, one in product((file.rank, None), (file.path.rpartition("/")[2], file.mtime_ns)):
                    named[rank, file.size, one][file.path] = file
    for path, size in sorted(sizes.items()) if named else ():
        place, seen = tree.checkpoints.get(path) or tree.foreign[path]
        likely = [named.get((place.rank, size, one), {}) for one in (seen.name, seen.mtime_ns)]
        yield from ((path, file) for file in (likely[0] | likely[1]).values())


def quarantines(databases: Sequence[Database], tree: Tree, new: Iterable[Checkpoint]) -> dict[str, str]:
    """Why new files are quarantined, by path: they have the bytes of a file of a quarantined state that is gone."""
    there = {**tree.checkpoints, **tree.foreign}
    sizes = {file.path: file.size for file in new if file.size is not None and file.path in there}
    found: dict[str, str] = {}
    for path, original in _alike(databases, tree, sizes, directories.quarantined_of_sizes):
        if path not in found and _has_digest_of(path, original):
            found[path] = original.quarantine
    return found


def _is_copy(path: str, seen: Seen | None, original: Checkpoint) -> bool:
    """Whether a file is a copy. With the name, size and time of the original, it counts as one without being read.

    If the time is in whole seconds, both files are read: some file systems record no finer times. If the original was
    damaged or changed since, its digest tells; if it is gone, the copy takes its place. Another file that was written
    over the original is no state of its launch: a copy of that file is no copy, unless the record says damaged.
    """
    if files.identity(path) == files.identity(original.path):  # a link leads there: it is the same file
        return False
    if is_original(original):
        is_of_time = seen is not None and seen.mtime_ns == original.mtime_ns and seen.mtime_ns % 10**9 > 0
        is_of_name = path.rpartition("/")[2] == original.path.rpartition("/")[2]
        return (is_of_time and is_of_name) or files.same_bytes(path, original.path)
    is_damaged = original.state is FileState.DAMAGED and files.same_bytes(path, original.path)
    return files.facts_if_seen(original.path) is not None and (is_damaged or _has_digest_of(path, original))


def _has_digest_of(path: str, original: Checkpoint) -> bool:
    try:
        return original.digest is not None and files.digest(path) == original.digest
    except OSError:
        return False


def copies_among(
    found: Sequence[FoundFile],
    is_same: Callable[[str, str], bool] = files.same_bytes,
    watched: AbstractSet[str] = frozenset(),
) -> dict[str, str]:
    """The copies among files, by path, each with the path of its original: the one written first, or given first.

    A copy is in another directory than its original, and has its name or its time. Files that were written one shortly
    after the other are not copies: two callbacks may save the same state. Beside a file of `watched`, which a registrar
    takes up, such a file would add nothing: it counts as a copy.
    """
    copies: dict[str, str] = {}
    originals: dict[tuple[object, ...], list[FoundFile]] = defaultdict(list)
    for file in sorted(found, key=lambda each: each.mtime_ns):
        if file.content not in (Content.FULL, Content.SHARE):
            continue
        rank, about = rank_of(file), (file.path.rpartition("/")[2], file.mtime_ns)
        likely = {each.path: each for one in about for each in originals[rank, file.size, one]}
        apart = (path for path, each in likely.items() if _is_apart(file, each, is_watched=path in watched))
        original = next((path for path in apart if is_same(file.path, path)), None)
        if original is not None:
            copies[file.path] = original
        else:
            for of_rank, one in product({rank, None}, about):  # a file of no known rank may be a copy of any other
                originals[of_rank, file.size, one].append(file)
    return copies


def _is_apart(file: FoundFile, other: FoundFile, *, is_watched: bool) -> bool:
    is_beside = file.path.rpartition("/")[0] == other.path.rpartition("/")[0]
    return not is_beside and (is_watched or not 0 < file.mtime_ns - other.mtime_ns <= NEAR_NS)


def among_new(found: Sequence[FoundFile], watched: Sequence[FoundFile], of_others: AbstractSet[str]) -> dict[str, str]:
    """Why new files that are copies of other new files, or of `watched` ones, are not adopted, by path.

    `of_others` has those of `watched` that other runs save.
    """
    of_registrars = {each.path for each in watched}
    copies = copies_among([*watched, *sorted(found, key=lambda each: each.path)], watched=of_registrars)
    told = ((each.path, copies[each.path]) for each in found if each.path in copies)
    return {path: _reason(of, "another run" if of in of_others else "this run") for path, of in told}


def as_a_run(
    run: str,
    copies: Mapping[str, Checkpoint],
    tree: Tree,
    databases: Sequence[Database],
    *,
    world_size: int | None,
    said: Stated,
) -> list[ScannedLaunch]:
    """The launches of a run that consists of copies: those of the originals, with the same steps.

    `world_size` and `said` are stated by the user. They apply to launches whose number of ranks a scan had to guess.
    Raises `UsageError` if the stated replicas do not fit that number of ranks.
    """
    of_launch: dict[str, list[Checkpoint]] = defaultdict(list)
    originals: dict[str, Launch] = {}
    for path, original in sorted(copies.items()):
        seen = tree.seen_of_record(path)
        if original.launch_key not in originals:
            originals[original.launch_key] = _launch_of(original, databases)
        if seen is not None:
            # Else the file was changed before it was copied.
            is_sound = is_original(original) or _has_digest_of(path, original)
            of_launch[original.launch_key].append(
                replace(
                    original,
                    run=run,
                    launch=launch_id(run, original.run, original.launch),
                    path=path,
                    mtime_ns=seen.mtime_ns if is_sound else original.mtime_ns,
                    created_at=moment(seen.mtime_ns),
                    state=FileState.COMPLETE if is_sound else FileState.DAMAGED,  # gc may have removed the original
                    problem=None if is_sound else Rule.DIGEST_MISMATCH,
                    revision=None,
                    directory_id="",
                    grade=original.grade or Grade.PROVEN,
                )
            )
    launches = []
    for key, some in of_launch.items():
        of = originals[key]
        began = of.created_at or min(file.created_at for file in some if file.created_at)
        size, layout = of.world_size, of.layout
        is_guess = of.id.startswith(SCANNED) and some[0].content is not Content.PART
        if world_size is not None and is_guess:
            stays = layout if size == world_size else stand_alone()
            size, layout = world_size, stated_layout(said.replicas, world_size) or stays
        launches.append(ScannedLaunch(some[0].launch, size, of.steps_per_epoch, began, tuple(some), layout))
    return launches


def _launch_of(file: Checkpoint, databases: Iterable[Database]) -> Launch:
    for database in databases:
        with database.read() as connection:
            found = reads.launch(connection, file.launch_key)
        if found is not None:
            return found
    raise LookupError(f"launch {file.launch} of run {file.run} has a file and no record")
