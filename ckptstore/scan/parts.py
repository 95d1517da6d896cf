"""Puts the files of MindFormers 2.0 into saves, one for each directory of an iteration, by the notes that it has.

They are catalogued, so that people see them, and never loaded: a state is spread over files that MindFormers alone puts
together. The tracker is advice: what it says decides nothing here, and is told where it does not fit the files.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptstore.core import parts
from ckptstore.core.model import Skipped, moment
from ckptstore.core.text import some
from ckptstore.errors import UnreadableError
from ckptstore.formats.mindformers import read_common, read_promised, read_tracker
from ckptstore.outside import Path
from ckptstore.scan.found import PlacedFile, ScannedLaunch, Uncertain, launch_id, record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.core.model import Checkpoint
    from ckptstore.scan.found import FoundFile
    from ckptstore.scan.tree import Tree

_ABNORMAL = "MindFormers' health monitor found the state abnormal (ckpt_status in common.json)"


@dataclass(frozen=True)
class PartsFound:
    """What is known of the parts below a directory: launches with their new files only, and what people must know."""

    launches: tuple[ScannedLaunch, ...] = ()
    uncertain: tuple[Uncertain, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()


def saves_in_parts(
    run: str, tree: Tree, new: Sequence[FoundFile], known: Mapping[str, Checkpoint], others: AbstractSet[str]
) -> PartsFound:
    """Put the parts of a tree into saves and launches; `new` are those to take in, `others` those of other runs."""
    found = {file.path: file for file in new}
    directories: dict[str, list[str]] = defaultdict(list)
    for path in tree.checkpoints:
        if path not in others and tree.is_part(path):
            directories[path.rpartition("/")[0]].append(path)
    whole: dict[str, set[int]] = defaultdict(set)
    warnings: list[str] = []
    launches: dict[tuple[str, ...], list[Checkpoint]] = defaultdict(list)
    began: dict[tuple[str, ...], int] = {}
    uncertain: list[Uncertain] = []
    skipped: list[Skipped] = []
    for directory, paths in sorted(directories.items()):
        root, _, name = directory.rpartition("/")
        step = parts.parse_iteration(name)
        unseen = [found[path] for path in sorted(paths) if path in found]
        if step is None:
            skipped += [Skipped(file.path, "it is in no directory of an iteration of MindFormers") for file in unseen]
            continue
        here = [
            path
            for path in paths
            if path in found or (path in known and known[path].size == tree.checkpoints[path][1].size)
        ]
        iteration = _iteration(Path(directory), step, here, found)
        doubt = parts.doubt(iteration) if unseen else ""
        uncertain += [Uncertain(file.path, step, doubt) for file in unseen if doubt]
        lacking = parts.lacking(iteration)
        if lacking:
            names = some(sorted(lacking), 4)
            warnings.append(f"{directory} is not whole: {names} is not there or cannot be read")
        whole[root] |= {step} if here and not doubt and not lacking else set()
        if here and not doubt:
            key = (run, "MindFormers 2.0", root, _prefix(here), str(parts.size_of_save(iteration)))
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
        (*warnings, *(warning for root, steps in sorted(whole.items()) if (warning := _stale(root, steps)))),
    )


def _iteration(directory: Path, step: int, paths: Iterable[str], found: Mapping[str, FoundFile]) -> parts.Iteration:
    """What the directory of an iteration holds, with the notes in it."""
    counters = {Path(path).name: found[path].optimizer_step if path in found else None for path in paths}
    common, trouble = None, ""
    try:
        common = read_common(directory / parts.COMMON)
    except FileNotFoundError:
        trouble = f"{parts.COMMON}, which is written last, is not there: the save was not finished"
    except UnreadableError as error:
        trouble = str(error)
    except OSError as error:
        trouble = f"{parts.COMMON} cannot be read ({error.strerror})"
    try:
        promised = read_promised(directory / parts.METADATA)
    except OSError:  # a single device writes none, and what it names is only one witness more
        promised = frozenset()
    return parts.Iteration(step, counters, common, trouble, promised)


def _record(launch: str, run: str, file: FoundFile, iteration: parts.Iteration) -> Checkpoint:
    counted = replace(file, optimizer_step=parts.optimizer_step(iteration, Path(file.path).name))
    made = record(run, launch, PlacedFile(counted, file.rank or 0, iteration.step), None)
    is_abnormal = iteration.common is not None and iteration.common.is_abnormal
    return replace(made, quarantine=_ABNORMAL) if is_abnormal else made


def _prefix(paths: Iterable[str]) -> str:
    return min(part.prefix for path in paths if (part := parts.parse_part(Path(path).name)) is not None)


def _stale(root: str, whole: set[int]) -> str:
    """What is wrong with the tracker, which MindFormers itself follows; a missing one is none of our business."""
    path = Path(root) / parts.TRACKER
    newest = max(whole, default=None)
    best = "none is" if newest is None else f"{newest} is the newest that is"
    try:
        said = read_tracker(path)
    except FileNotFoundError:
        return ""
    except UnreadableError as error:
        return f"{error.message}; of the iterations beside it {best} whole"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}); of the iterations beside it {best} whole"
    if said not in whole:
        return f"{path} says {said}, which is not there as a whole; {best}"
    return f"{path} says {said}, though {newest} is whole: MindFormers would go back" if said != newest else ""
