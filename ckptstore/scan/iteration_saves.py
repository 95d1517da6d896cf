"""Puts the files of MindFormers 2.0 into saves, one for each directory of an iteration, by its `common.json`.

The catalog lists them, but they are never loaded: a state is spread over files that only MindFormers can put together.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptstore.core import iterations
from ckptstore.core.groups import grouped
from ckptstore.core.model import Skipped, moment
from ckptstore.core.text import some
from ckptstore.evidence.contents import ABNORMAL, read_iteration
from ckptstore.evidence.unregistered import PlacedFile, ScannedLaunch, Uncertain, launch_id, record
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.core.model import Checkpoint
    from ckptstore.evidence.unregistered import FoundFile
    from ckptstore.scan.tree import Tree


@dataclass(frozen=True)
class PartsFound:
    """The parts below a directory: launches with their new files only, and warnings."""

    launches: tuple[ScannedLaunch, ...] = ()
    uncertain: tuple[Uncertain, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()


def saves_in_parts(
    run: str, tree: Tree, new: Sequence[FoundFile], known: Mapping[str, Checkpoint], others: AbstractSet[str]
) -> PartsFound:
    """Put the parts of a tree into saves and launches.

    `new` are the files to adopt. The paths in `others` are left out: they are, or may be, files of other runs.
    """
    found = {file.path: file for file in new}
    directories = grouped(
        (path.rpartition("/")[0], path) for path in tree.checkpoints if path not in others and tree.is_part(path)
    )
    warnings: list[str] = []
    launches: dict[tuple[str, ...], list[Checkpoint]] = defaultdict(list)
    began: dict[tuple[str, ...], int] = {}
    uncertain: list[Uncertain] = []
    skipped: list[Skipped] = []
    for directory, paths in sorted(directories.items()):
        root, _, name = directory.rpartition("/")
        step = iterations.parse_iteration(name)
        unseen = [found[path] for path in sorted(paths) if path in found]
        if step is None:
            skipped += [Skipped(file.path, "it is in no directory of an iteration of MindFormers") for file in unseen]
            continue
        here = [
            path
            for path in paths
            if path in found or (path in known and known[path].size == tree.checkpoints[path][1].size)
        ]
        counters = {Path(path).name: found[path].optimizer_step if path in found else None for path in here}
        iteration = read_iteration(Path(directory), step, counters)
        doubt = iterations.doubt(iteration) if unseen else ""
        uncertain += [Uncertain(file.path, step, doubt) for file in unseen if doubt]
        lacking = iterations.lacking(iteration.parts)
        if lacking:
            names = some(sorted(lacking), 4)
            warnings.append(f"{directory} is not whole: {names} is not there or cannot be read")
        if here and not doubt:
            key = (run, "MindFormers 2.0", root, _prefix(here), str(iterations.size_of_save(iteration)))
            launches[key] += [_record(launch_id(*key), run, file, iteration) for file in unseen]
            written = min(tree.checkpoints[path][1].mtime_ns for path in here)
            began[key] = min(began.get(key, written), written)
    return PartsFound(
        tuple(
            ScannedLaunch(launch_id(*key), int(key[-1]), None, moment(began[key]), tuple(files))
            for key, files in launches.items()
            if files
        ),
        tuple(uncertain),
        tuple(skipped),
        tuple(warnings),
    )


def _record(launch: str, run: str, file: FoundFile, iteration: iterations.Iteration) -> Checkpoint:
    counted = replace(file, optimizer_step=iterations.optimizer_step(iteration, Path(file.path).name))
    made = record(run, launch, PlacedFile(counted, file.rank or 0, iteration.step), None)
    is_abnormal = iteration.common is not None and iteration.common.is_abnormal
    return replace(made, quarantine=ABNORMAL) if is_abnormal else made


def _prefix(paths: Iterable[str]) -> str:
    return min(part.prefix for path in paths if (part := iterations.parse_part(Path(path).name)) is not None)
