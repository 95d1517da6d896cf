"""Saves of MindFormers 2.0: a directory for each iteration, separate files for weights and optimizer (mindspore.md §2).

Source: MindFormers, `mindformers/checkpoint/checkpoint.py` (`save_checkpoint`, `CommonInfo`) and
`mindformers/checkpoint/utils.py` (`get_checkpoint_iter_dir`, `get_checkpoint_name`, `CkptHealthStatus`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.core.limits import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COMMON = "common.json"
METADATA = "metadata.json"
TRACKER = "latest_checkpointed_iteration.txt"
MODEL, OPTIMIZER = "model", "opt"

_PART = re.compile(
    r"(?:(?P<prefix>.+)-)?(?P<holds>model|opt)-(?P<index>\d{7})-(?P<count>\d{7})\.safetensors",
    re.ASCII | re.DOTALL,
)
_ITERATION = re.compile(r"iteration_(\d{8,})", re.ASCII)
_MARK = "/iteration_"


@dataclass(frozen=True, order=True)
class PartName:
    """The facts in the name of a part: `holds` is "model" or "opt"; `index` counts from 0 below `count`.

    `index` is the rank and `count` the number of ranks, unless MindFormers removed redundancy. Then it writes no empty
    files, and there may be more or fewer files of weights than of the optimizer.
    """

    prefix: str
    holds: str
    index: int
    count: int

    def __str__(self) -> str:
        begin = f"{self.prefix}-" if self.prefix else ""
        return f"{begin}{self.holds}-{self.index:07d}-{self.count:07d}.safetensors"


@dataclass(frozen=True)
class Common:
    """The values in `common.json`; None for missing ones.

    In graph mode `step_num` is the iteration, and `global_step` the optimizer's counter, which is lower if updates were
    skipped. In PyNative mode `global_step` is the iteration, and `step_num` something else (the step in the epoch, or
    how many there will be). `is_abnormal`: MindFormers' health monitor found the state to be bad.
    """

    step_num: int | None = None
    global_step: int | None = None
    is_abnormal: bool = False


@dataclass(frozen=True)
class Iteration:
    """The directory of an iteration: its files, and the facts about their step.

    `parts` are the complete files by name, each with its optimizer's counter (None: none was read). `common` is None if
    `common.json` tells nothing; then `trouble` says why.
    """

    step: int
    parts: Mapping[str, int | None]
    common: Common | None
    trouble: str = ""


def parse_part(name: str) -> PartName | None:
    """Read the name of a file; None if MindFormers 2.0 writes no such name."""
    match = _PART.fullmatch(name)
    if match is None or not int(match["index"]) < int(match["count"]) <= MOST_RANKS:
        return None
    return PartName(match["prefix"] or "", match["holds"], int(match["index"]), int(match["count"]))


def parse_iteration(directory: str) -> int | None:
    """The step in the name of a directory `iteration_N`; None for any other name."""
    match = _ITERATION.fullmatch(directory)
    return None if match is None else int(match[1])


def doubt(found: Iteration) -> str:
    """Why it is not proven that these files have this step and are of one save; empty if it is proven."""
    common = found.common
    if common is None:
        return found.trouble
    counts = {(part.prefix, part.holds): set[int]() for part in _named(found.parts)}
    for part in _named(found.parts):
        counts[part.prefix, part.holds].add(part.count)
    if len({prefix for prefix, _ in counts}) > 1 or any(len(each) > 1 for each in counts.values()):
        return "files of several saves are in its directory, and nothing tells which of them common.json is of"
    if not _agrees(found.step, common):
        told = f"step_num {common.step_num} and global_step {common.global_step}"
        return f"its directory is that of step {found.step}, common.json says {told}"
    counted = common.global_step if common.step_num == found.step else None
    for name, count in sorted(found.parts.items()):
        if count is not None and (count > found.step or (counted is not None and count != counted)):
            expected = found.step if counted is None else counted
            return f"the optimizer's counter in {name} is {count}, where common.json and the directory say {expected}"
    return ""


def lacking(names: Iterable[str]) -> tuple[str, ...]:
    """The names of the missing parts of a save, by the counts in the names of those that are there."""
    there = set(names)
    kinds = {(part.prefix, part.holds, part.count) for part in _named(there)}
    every = {str(PartName(prefix, holds, index, count)) for prefix, holds, count in kinds for index in range(count)}
    return tuple(sorted(every - there))


def above_iteration(path: str) -> str:
    """The directory that contains the directory of an iteration; empty if the path is not of a file in such a one."""
    if _MARK not in path:
        return ""
    directory, _, name = path.rpartition("/")
    above, _, last = directory.rpartition("/")
    if parse_iteration(last) is None or (parse_part(name) is None and name not in (COMMON, METADATA)):
        return ""
    return above or "/"


def optimizer_step(found: Iteration, name: str) -> int | None:
    """The number of updates applied: from `common.json`, which has it in graph mode only, else from the file `name`."""
    common = found.common
    if common is not None and common.step_num == found.step and common.global_step is not None:
        return common.global_step
    return found.parts.get(name)


def size_of_save(found: Iteration) -> int:
    """The greater count of a save's files, of weights or of optimizer: the number of ranks, as far as known."""
    return max((part.count for part in _named(found.parts)), default=0)


def _named(names: Iterable[str]) -> list[PartName]:
    return [part for name in names if (part := parse_part(name)) is not None]


def _agrees(step: int, common: Common) -> bool:
    if common.global_step == step:
        return True
    return common.step_num == step and (common.global_step is None or common.global_step < step)
