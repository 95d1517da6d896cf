"""Looks at a directory tree: classifies files by path and header, and finds those that differ from their records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING

from ckptstore.core.classify import Named, What, bare_rank, classify, prefixes, telling
from ckptstore.core.copy_keys import folder_of_copy
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.limits import MOST_RANKS
from ckptstore.core.model import SCANNED, Checkpoint, Content, FileState, Kind, Skipped
from ckptstore.core.naming import FOREIGN, parse_rank_directory
from ckptstore.core.sighting import Sighting, compare, is_as_recorded
from ckptstore.disk import files
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import absence_beside, directory_of, is_used_as
from ckptstore.disk.waiting import for_each
from ckptstore.disk.walk import Seen, walk
from ckptstore.errors import UnreadableError
from ckptstore.evidence.contents import Contents, ContentsReader, cut_among
from ckptstore.evidence.unregistered import FoundFile
from ckptstore.formats.header import MOST_DIMS
from ckptstore.formats.inspect import inspect
from ckptstore.formats.strategy import Strategy
from ckptstore.outside import Path
from ckptstore.scan.experiments import Home, home_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

_MANY = 3
_CONTENTS = {What.WEIGHTS: Content.WEIGHTS, What.PART: Content.PART}


@dataclass(frozen=True)
class Opaque:
    """A checkpoint of PyTorch or TensorFlow that got no step: size in bytes."""

    path: str
    rank: int | None
    size: int
    modified: datetime


@dataclass
class Tree:
    """The files below a root."""

    root: str
    checkpoints: dict[str, tuple[Named, Seen]] = field(default_factory=dict)  # by path
    ranks: set[int] = field(default_factory=set)  # that names and strategy files state
    counts: Counter[str] = field(default_factory=Counter)  # of files, by `What`
    skipped: list[Skipped] = field(default_factory=list)
    unread: list[Skipped] = field(default_factory=list)  # those of `skipped` that could not be read
    foreign: dict[str, tuple[Named, Seen]] = field(default_factory=dict)  # checkpoints that MindSpore cannot load
    strangers: set[str] = field(default_factory=set)  # files without the name of a checkpoint: some are recorded

    def seen(self, path: str) -> Seen | None:
        """The checkpoint at a path, if there is one."""
        found = self.checkpoints.get(path) or self.foreign.get(path)
        return found[1] if found else None

    def seen_of_record(self, path: str) -> Seen | files.FileFacts | None:
        """The file at the path of a record. It need not have the name of a checkpoint: `common.json` has none."""
        return self.seen(path) or files.facts_if_seen(path)

    def home(self, path: str) -> tuple[Home, str]:
        """The home of a checkpoint of the tree, and its kind, or `part`, or the format that MindSpore cannot load."""
        if path in self.foreign:
            form = self.foreign[path][0].format
            root = self.root.rstrip("/")
            parts = path.rpartition("/")[0][len(root) :].split("/")
            ranks = [bare_rank([part], form) for part in parts]
            below = "/".join(part if rank is None else f"rank_{rank}" for part, rank in zip(parts, ranks, strict=True))
            return home_of(f"{root}{below}", self.root), form
        named = self.checkpoints[path][0]
        kind = (named.kind or Kind.PERIODIC).value
        return home_of(path.rpartition("/")[0], self.root), What.PART.value if named.what is What.PART else kind

    def is_part(self, path: str) -> bool:
        """Whether a checkpoint of the tree is of MindFormers 2.0, by its path."""
        return path in self.checkpoints and self.checkpoints[path][0].what is What.PART

    def is_of_weights(self, path: str) -> bool:
        """Whether a checkpoint of the tree has weights only, by its path."""
        return path in self.checkpoints and self.checkpoints[path][0].what is What.WEIGHTS


def look_at(root: Path, world_size: int | None, progress: Callable[[int], None]) -> Tree:
    """Classify every file below the root; `progress` is called with the number of files in each directory.

    If the user states a `world_size` of 1, the root itself is no directory of a rank. Copies in a tier are no
    checkpoints of a run: their records bring them back.
    """
    tree = Tree(str(root))
    copied: set[str] = set()  # the folders of launches in a tier
    above = [part for part in telling(root.parts) if world_size != 1 or parse_rank_directory(part) is None]
    for directory in walk(str(root), skip=lambda name: name == FOLDER):
        parts = [*above, *directory.parts]
        tree.skipped += directory.passed
        tree.unread += directory.unread
        tree.ranks |= {rank for part in parts if (rank := parse_rank_directory(part)) is not None}
        names = [seen.name for seen in directory.files]
        beside = prefixes(names)
        for seen in directory.files:
            path = f"{directory.path.rstrip('/')}/{seen.name}"
            named = classify([*parts, seen.name], beside)
            if named.what is not What.STRANGER and (folder := folder_of_copy(path)):
                copied.add(folder)
                named = Named(what=What.STRANGER)
            tree.counts[named.what.value] += 1
            if named.what in (What.CHECKPOINT, What.WEIGHTS, What.PART):
                tree.checkpoints[path] = named, seen
            elif named.what is What.OPAQUE:
                rank = bare_rank(parts, named.format) if named.rank is None else named.rank
                tree.foreign[path] = replace(named, rank=rank), seen
            elif named.what is What.DEBRIS:
                tree.skipped.append(Skipped(path, "left over from an unfinished save"))
            elif named.what is What.STRANGER:
                tree.strangers.add(path)
            elif named.what is What.STRATEGY:
                tree.ranks |= _ranks_of(Path(path))
        progress(len(names))
    tree.skipped += [Skipped(folder, _copies_in(folder)) for folder in sorted(copied)]
    _drop_numbers_of_prefixes(tree)
    return tree


def _drop_numbers_of_prefixes(tree: Tree) -> None:
    """Take a number in a name, as in lora_rank_8-1_5.ckpt, for no rank if it belongs to the prefix.

    Such a number is above 0, and no rank of the directories of its family, or the same in three directories or more.
    If each of several directories has a number of its own, these are ranks: the files were moved.
    """
    named = [each for each, _ in tree.checkpoints.values() if each.rank_in_name is not None]
    if all(each.rank_in_name == each.rank for each in named):
        return
    of_prefixes = set()
    for family, pairs in grouped((each.family, (each.rank_in_name, each.rank)) for each in named).items():
        numbers, homes = ({*each} for each in zip(*pairs, strict=True))
        are_moved = len(set(pairs)) == len(numbers) == len(homes) > 1
        is_foreign = numbers.isdisjoint(homes) or (len(numbers) == 1 and len(homes) >= _MANY)
        if 0 not in numbers and is_foreign and not are_moved:
            of_prefixes.add(family)
    for path, (each, seen) in tree.checkpoints.items():
        if each.family in of_prefixes:
            tree.checkpoints[path] = replace(each, rank_in_name=None), seen


def _copies_in(folder: str) -> str:
    records = Command("scan", str(Path(folder).parents[1]), "--into", "DIRECTORY")
    return f"copies in a tier, which no scan adopts: {records} takes up their records"


def _ranks_of(strategy: Path) -> set[int]:
    """The highest rank by a strategy file: its device matrices and its stages show the number of ranks."""
    try:
        found = inspect(strategy)
    except (UnreadableError, OSError):
        return set()
    if not isinstance(found, Strategy) or not found.parameters:
        return set()
    grids = (each.dev_matrix for each in found.parameters if len(each.dev_matrix) <= MOST_DIMS)
    of_a_stage = max(map(prod, grids), default=0)
    highest = of_a_stage * (max(found.stages, default=0) + 1) - 1
    return {highest} if 0 <= highest < MOST_RANKS else set()  # else it is damaged


def read_files(tree: Tree, paths: Sequence[str]) -> tuple[list[FoundFile], list[Skipped]]:
    """Read these files: return their content and the facts of their paths, and unreadable ones with reasons."""
    reader = ContentsReader()

    def read(path: str) -> Contents | Skipped:
        named, _ = tree.checkpoints[path]
        return reader.read(path, _CONTENTS.get(named.what, Content.FULL), named.family)

    read_of = dict(zip(paths, for_each(read, paths), strict=True))
    whole = {path: each for path, each in read_of.items() if isinstance(each, Contents)}
    names = {path: tree.checkpoints[path][0] for path in whole}
    cut = cut_among({path: ((names[path].family, names[path].rank), each) for path, each in whole.items()})
    skipped = [each for each in read_of.values() if isinstance(each, Skipped)]
    skipped += [Skipped(path, reason) for path, reason in cut.items()]
    return [found_file(tree, path, each) for path, each in whole.items() if path not in cut], skipped


def found_file(tree: Tree, path: str, contents: Contents | None = None) -> FoundFile:
    """The facts of a checkpoint's path in the tree, and of its content (None: it was not read)."""
    named, seen = tree.checkpoints.get(path) or tree.foreign[path]
    return FoundFile(
        path=path,
        kind=named.kind or Kind.PERIODIC,
        content=contents.content if contents else Content.FULL,
        format=named.format,
        family=named.family,
        relaunch=named.relaunch,
        rank=named.rank,
        rank_in_name=named.rank_in_name,
        epoch=named.epoch,
        step_in_epoch=named.step_in_epoch,
        named_step=named.named_step,
        optimizer_step=contents.header.optimizer_step if contents else None,
        info=contents.header.info if contents else {},
        updates_every_step=contents is not None and contents.network.updates_every_step,
        shapes=contents.network.shapes if contents else {},
        size=seen.size,
        mtime_ns=seen.mtime_ns,
    )


def is_rewritten(file: Checkpoint, tree: Tree) -> bool:
    """Whether a new file replaced a recorded one in a way that is no damage: it is then judged as a new file.

    That holds for files that a scan recorded, and for files recorded without a digest.
    """
    here = tree.seen(file.path)
    if here is None or is_as_recorded(file, here.size, here.mtime_ns):
        return False
    is_scanned = file.launch.startswith(SCANNED)
    if here.size != file.size:
        return file.format in FOREIGN and is_scanned  # scripts save under one name again and again
    if file.digest is None:
        return file.state in (FileState.COMPLETE, FileState.DAMAGED)
    return is_scanned and file.state is FileState.COMPLETE and sighted(file, here) is Sighting.ANOTHER


def sighted(file: Checkpoint, here: Seen | files.FileFacts) -> Sighting:
    """Compare a file of the tree with its record. If only the time differs, its bytes are read."""
    try:
        return compare(file, files.against(file.path, file, here))
    except OSError:
        return Sighting.CANNOT_LOOK


def is_gone_for_good(directory: str, identities: AbstractSet[str], root: str) -> bool:
    """Whether files that are not seen in a directory with these identities are gone. Else its disk may be unmounted.

    The user says so by a scan of that very directory, if there is anything in it; or by a scan of a directory above, if
    it has that identity, or has a `.ckptstore` without any: a user made it anew.
    """
    if directory == root or not identities:
        return files.has_anything(root)
    return all(is_used_as(directory, each) for each in identities)


def changed(known: Mapping[str, Checkpoint], tree: Tree) -> tuple[list[Checkpoint], ...]:
    """Compare the recorded files with the disk: those of another size, gone, back, and unreachable.

    A file that a scan does not find is gone if its directory is there, or `is_gone_for_good`. Files below a path that
    was skipped are in no list.
    """
    unseen = {skipped.path.rstrip("/") for skipped in tree.skipped}

    @cache
    def is_hidden(path: str) -> bool:
        above = path.rpartition("/")[0]
        return path in unseen or (above != path and is_hidden(above))

    damaged: list[Checkpoint] = []
    missing: list[Checkpoint] = []
    back: list[Checkpoint] = []
    away: list[Checkpoint] = []
    is_gone = cache(partial(is_gone_for_good, root=tree.root))
    # A record lacks the identity if its directory could not be read then. Other records of that directory have it.
    identities = {directory_of(path): file.directory_id for path, file in known.items() if file.directory_id}
    for path, file in known.items():
        here = tree.seen_of_record(path)
        if here is None:
            if file.state is FileState.COMPLETE and not is_hidden(path):
                directory = directory_of(path)
                identity = file.directory_id or identities.get(directory, "")
                is_lost = is_gone(directory, frozenset([identity] if identity else ()))
                (missing if is_lost else away).append(file)
        elif file.state is FileState.COMPLETE and here.size != file.size:
            now = files.facts_if_seen(path)  # it may have been saved again since the tree was looked at
            if now is not None and now.size != file.size:
                (away if absence_beside(file) else damaged).append(file)
        elif file.state.is_gone and is_as_recorded(file, here.size, here.mtime_ns):
            is_left = files.facts_if_seen(path) is not None  # gc may have deleted it since the tree was looked at
            back += [replace(file, state=FileState.COMPLETE)] if is_left else []
    return damaged, missing, back, away
