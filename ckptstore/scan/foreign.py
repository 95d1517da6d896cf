"""Puts checkpoints that MindSpore cannot load into saves: files of PyTorch, prefixes of TensorFlow, directories.

The step in a name is a single witness, and unknown scripts wrote these names. It counts if the user trusts names. In a
complete directory of HyperParallel it counts without that.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.core.classify import Named, What, bare_rank
from ckptstore.core.limits import HIGHEST, MOST_RANKS, TOO_LATE
from ckptstore.core.model import SCANNED, Grade, Skipped, moment
from ckptstore.core.naming import (
    DIRECTORY,
    POINTER,
    PYTORCH,
    is_of_shards,
    parse_rank_directory,
    parse_shards,
    parse_tensorflow,
    step_named,
)
from ckptstore.core.replicas import stand_alone
from ckptstore.core.sighting import is_as_recorded
from ckptstore.disk import files, several
from ckptstore.disk.waiting import for_each
from ckptstore.disk.walk import Seen
from ckptstore.errors import UsageError, reason_of
from ckptstore.evidence.reconstruct import size_of_job
from ckptstore.evidence.unregistered import BY_HAND, PlacedFile, ScannedLaunch, Trusted, Uncertain, launch_id, record
from ckptstore.formats.inspect import is_cut
from ckptstore.journal.jsonl import nearest
from ckptstore.outside import Path
from ckptstore.resume.resolve import stated_layout
from ckptstore.scan.tree import Opaque, found_file

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from ckptstore.core.model import Checkpoint
    from ckptstore.evidence.reconstruct import Stated
    from ckptstore.evidence.unregistered import FoundFile
    from ckptstore.scan.known_files import KnownFiles
    from ckptstore.scan.tree import Tree


def gather(tree: Tree) -> None:
    """Group the files of a checkpoint under one path: a prefix, or a directory of shards, whose name has a step.

    A directory that contains checkpoints of MindSpore is not one checkpoint.
    """
    found, tree.foreign = tree.foreign, {}
    of_shards = {path: _shards_above(path, tree) for path in found}
    directories = {path for path in {*of_shards.values()} if path and not _has_checkpoints(path, tree)}
    prefixes: set[str] = set()
    for path, (named, seen) in sorted(found.items()):
        parsed = parse_tensorflow(seen.name)
        if of_shards[path] in directories:
            continue
        if parsed is None:
            tree.foreign[path] = named, seen
        else:
            prefixes.add(f"{path.rpartition('/')[0]}/{parsed.prefix}")
            tree.foreign[f"{path.rpartition('/')[0]}/{parsed.prefix}"] = named, seen
    for path in sorted(directories | prefixes):
        named = tree.foreign.get(path, (_directory(path, tree),))[0]
        try:
            there, lacks = _facts(path), several.lacking(path)
        except OSError as error:
            there, lacks = None, reason_of(error)
        if there is None or lacks:
            reason = f"it lacks {lacks}" if there else lacks or "its index is not there"
            tree.skipped.append(Skipped(path, f"a checkpoint of several files: {reason}"))
            tree.foreign.pop(path, None)
        else:
            name = path.rpartition("/")[2]
            seen = Seen(name, there.size, there.mtime_ns)
            tree.foreign[path] = replace(named, named_step=step_named(name)), seen


def _facts(path: str) -> files.FileFacts | None:
    """As `disk.files.facts`; raises `OSError` also for a time that no catalog can store."""
    found = files.facts(path)
    if found is not None and abs(found.mtime_ns) > HIGHEST:
        raise OSError(errno.EOVERFLOW, TOO_LATE)
    return found


def _shards_above(path: str, tree: Tree) -> str:
    """The directory of shards that a path is in; empty if it is in none."""
    below = path[len(tree.root.rstrip("/")) + 1 :].split("/")[:-1]
    for place, part in enumerate(below):
        if parse_shards(part) is not None:
            return "/".join((tree.root.rstrip("/"), *below[: place + 1]))
    return ""


def _has_checkpoints(directory: str, tree: Tree) -> bool:
    return any(path.startswith(f"{directory}/") for path in tree.checkpoints)


def _directory(path: str, tree: Tree) -> Named:
    below = path[len(tree.root.rstrip("/")) + 1 :].split("/")
    ranks = [rank for part in below if (rank := parse_rank_directory(part)) is not None]
    rank = ranks[-1] if ranks else bare_rank(below, DIRECTORY)
    return Named(what=What.OPAQUE, format=DIRECTORY, rank=rank)


def take_directory(tree: Tree, path: str) -> bool:
    """Treat a directory below the root as one checkpoint, as the user states; False if there is none at this path.

    Raises `UsageError` if it contains checkpoints of MindSpore, or cannot be a checkpoint.
    """
    if not path.startswith(f"{tree.root.rstrip('/')}/") or not Path(path).is_dir():
        return False
    if _has_checkpoints(path, tree):
        raise UsageError(f"{path} has checkpoints of MindSpore in it", "give the step of each, as FILE=STEP")
    try:
        there = _facts(path)
    except OSError as error:
        raise UsageError(f"{path} is no checkpoint: {reason_of(error)}", "give its files") from None
    if there is None:
        return False
    tree.foreign = {each: found for each, found in tree.foreign.items() if not each.startswith(f"{path}/")}
    tree.foreign[path] = _directory(path, tree), Seen(path.rpartition("/")[2], there.size, there.mtime_ns)
    return True


class Foreign:
    """The checkpoints of a tree that MindSpore cannot load, by path: `placed` are those that have a step and a rank.

    `warnings` are about their launches. Files that are unchanged keep their records, and are not read. A file in a
    directory that was recorded as a checkpoint is no checkpoint of its own.
    """

    def __init__(self, tree: Tree, said: Stated, world_size: int | None, recorded: KnownFiles) -> None:
        self._tree = tree
        self._said = said
        self._world_size = world_size
        for path, file in recorded.known.items():
            if file.format == DIRECTORY and path not in tree.foreign:
                with suppress(UsageError):  # it is no checkpoint any more
                    take_directory(tree, path)
        found = [found_file(tree, path) for path in tree.foreign if not nearest(path, recorded.owners)]
        self._is_single = world_size == 1 or not (tree.ranks or any(file.rank is not None for file in found))
        self.warnings: list[str] = []
        self.placed: dict[str, PlacedFile] = {}
        self._uncertain: dict[str, Uncertain] = {}
        unknown = []
        for each in found:
            record = recorded.known.get(each.path)
            is_known = record is not None and is_as_recorded(record, each.size, each.mtime_ns)
            if record is None or not is_known or each.path in said.steps:
                unknown.append(each)
            elif record.grade is not None:
                placed = PlacedFile(each, record.rank, record.global_step, record.grade, record.doubt)
                self.placed[each.path] = placed
        for each, cut in zip(unknown, for_each(_is_cut, unknown), strict=True):
            if cut:
                tree.skipped.append(Skipped(each.path, "it is empty or cut"))
                continue
            told = self._told(each)
            if isinstance(told, PlacedFile):
                self.placed[each.path] = told
            else:
                self._uncertain[each.path] = told

    def _told(self, file: FoundFile) -> PlacedFile | Uncertain:
        rank = 0 if file.rank is None and (self._is_single or file.format == DIRECTORY) else file.rank
        named, reason, remedy = file.named_step, "nothing tells its step", BY_HAND
        if rank is None:
            reason, remedy = "nothing says which rank wrote it", "--world-size 1"
        elif rank >= MOST_RANKS:
            reason, remedy = f"it is of rank {rank}, and a launch has at most {MOST_RANKS} ranks", ""
        elif file.path in self._said.steps:
            return PlacedFile(file, rank, self._said.steps[file.path], Grade.ASSUMED, "its step was stated")
        elif named is not None and Trusted.NAME in self._said.trusted:
            return PlacedFile(file, rank, named, Grade.ASSUMED, "its name alone says so")
        elif named is not None and file.format == DIRECTORY and any(map(is_of_shards, files.names_in(file.path))):
            # It is a complete directory of HyperParallel. Other directories may have any number in their names.
            above = file.path.rpartition("/")[0]
            if files.number_in(f"{above}/{POINTER}") == named:
                return PlacedFile(file, rank, named, Grade.PROVEN)
            return PlacedFile(file, rank, named, Grade.ASSUMED, "its name alone says so")
        elif named is not None:
            reason, remedy = "nothing but its name tells its step", Trusted.NAME.remedy
        return Uncertain(file.path, named, reason, remedy)

    def launches(self, run: str, new: Iterable[str], known: Mapping[str, Checkpoint]) -> list[ScannedLaunch]:
        """The launches of the new files, and of files that earlier scans found: one for each home and format."""
        before = [path for path in self.placed if path in known and known[path].launch.startswith(SCANNED)]
        homes: dict[tuple[str, str], list[PlacedFile]] = defaultdict(list)
        for path in (*(path for path in new if path in self.placed), *before):
            home, form = self._tree.home(path)
            homes[home.key[len(self._tree.root) :], form].append(self.placed[path])
        if not homes:
            return []
        ranks = self._tree.ranks | {each.rank for each in self.placed.values() if each.file.rank is not None}
        size = size_of_job(self._world_size, ranks, self.warnings)
        length = self._said.steps_per_epoch
        launches = []
        for key, some in sorted(homes.items()):
            ids = {known[each.file.path].launch for each in some if each.file.path in before}
            launch = min(ids) if ids else launch_id(run, *key)
            began = moment(min(each.file.mtime_ns for each in some))
            records = tuple(record(run, launch, each, length) for each in some)
            layout = stated_layout(self._said.replicas, size) or stand_alone()
            launches.append(ScannedLaunch(launch, size, length, began, records, layout=layout))
        return launches

    def left(self, recorded: Container[str], *, has_others: bool) -> tuple[tuple[Opaque, ...], list[Uncertain]]:
        """The files that are not recorded; and the uncertain ones among them that a start must report.

        If the tree has other checkpoints, uncertain files without a rank need no report: many trees contain pretrained
        weights.
        """
        paths = sorted(path for path in (*self._uncertain, *self.placed) if path not in recorded)
        uncertain = [self._uncertain[path] for path in paths if path in self._uncertain]
        found = [(path, *self._tree.foreign[path]) for path in paths]
        ranks = {path: named.rank for path, named, _ in found}
        opaque = tuple(Opaque(path, named.rank, seen.size, moment(seen.mtime_ns)) for path, named, seen in found)
        return opaque, [each for each in uncertain if not has_others or ranks[each.path] is not None]


def _is_cut(file: FoundFile) -> bool:
    """Whether a file of PyTorch is empty or cut; False if it cannot be opened."""
    with suppress(OSError):
        return file.format == PYTORCH and is_cut(Path(file.path))
    return False
