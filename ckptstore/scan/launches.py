"""Groups files that nobody registered into launches. What is not evident is kept apart: a launch each."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from ckptstore.core.model import Kind
from ckptstore.core.naming import unfinished_ttp_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptstore.scan.found import FoundFile

NEAR_NS = 2_000_000_000
"""Files of one save are written within this time, and no launch gets from its start to a save in it: importing
MindSpore alone takes as long (mindspore.md §10). In nanoseconds."""

_APART = 4  # files of one state are of one launch where they are nearer than this part of the time between two saves
_NEAR_PART = 2
"""Files of one save are nearer than this part of the time to the save before and after: a second start that writes the
same state again takes about as long to it as the first one did, and the time to start."""


@dataclass(frozen=True)
class Ranked:
    """A found file, its rank, and the epoch and step in it that the file claims (None: it claims none)."""

    file: FoundFile
    rank: int
    epoch: int | None
    step_in_epoch: int | None

    @property
    def line(self) -> tuple[str, str, int]:
        """Whose file it is: of a kind, a family and a rank. A launch has one number of it."""
        return self.file.kind.value, self.file.family, self.rank

    @property
    def state(self) -> tuple[int | None, int | None, int | None]:
        """What files of one save have in common."""
        return self.file.optimizer_step, self.epoch, self.step_in_epoch


@dataclass(frozen=True)
class Unit:
    """Files that are of one launch by their names alone: those of one ModelCheckpoint, or one other file.

    MindSpore numbers the files of a ModelCheckpoint once a launch and never gives a number that is still in use
    (`_chg_ckpt_file_name_if_same_exist` in `train/callback/_checkpoint.py`); breakpoints are numbered one by one.
    """

    key: str
    files: tuple[Ranked, ...]

    @property
    def line(self) -> tuple[str, str, int]:
        """The line that all its files are of."""
        return self.files[0].line

    @property
    def relaunch(self) -> int:
        """The number that MindSpore gave."""
        return self.files[0].file.relaunch


@dataclass(frozen=True)
class Group:
    """Units that are of one launch; `by_times_alone`: nothing but when they were written tells that."""

    units: tuple[Unit, ...]
    by_times_alone: bool = False

    @cached_property
    def key(self) -> str:
        """The same whatever else is found, as long as its first unit is there."""
        return min(unit.key for unit in self.units)

    @cached_property
    def files(self) -> tuple[Ranked, ...]:
        """All files, by path."""
        return tuple(sorted((file for unit in self.units for file in unit.files), key=lambda file: file.file.path))

    @cached_property
    def begin(self) -> int:
        """When its first file was written, in nanoseconds since 1970."""
        return min(ranked.file.mtime_ns for ranked in self.files)

    @cached_property
    def end(self) -> int:
        """When its last file was written, in nanoseconds since 1970."""
        return max(ranked.file.mtime_ns for ranked in self.files)

    @cached_property
    def least_counter(self) -> int:
        """The lowest counter of its files; 0 if one of them has none."""
        return min(ranked.file.optimizer_step or 0 for ranked in self.files)

    @cached_property
    def greatest_counter(self) -> int:
        """The highest counter of its files; 0 if none has one."""
        return max(ranked.file.optimizer_step or 0 for ranked in self.files)

    @cached_property
    def has_counters(self) -> bool:
        """Whether its files tell how many updates they hold."""
        return all(ranked.file.optimizer_step is not None for ranked in self.files)

    @cached_property
    def numbers(self) -> dict[tuple[str, str, int], int]:
        """The number of its unit in every line that MindSpore numbers."""
        return {unit.line: unit.relaunch for unit in self.units if unit.line[0] in _NUMBERED}

    def is_before(self, other: Group) -> bool:
        """Whether the numbers that MindSpore gave prove that this launch was the earlier one."""
        mine = self.numbers
        return any(line in mine and mine[line] < number for line, number in other.numbers.items())


_NUMBERED = (Kind.PERIODIC.value, Kind.DYING_GASP.value)


def group(files: Iterable[Ranked], *, trusts_numbers: bool = False) -> tuple[list[Group], bool]:
    """The launches, oldest first, and whether that order is known (else it is a guess).

    Evidence: the names of one ModelCheckpoint; equal numbers where no rank can have missed a launch (`trusts_numbers`:
    as the user says; else each rank must have saved twice); and, if all times
    of the tree fit, files of one state that were written at nearly the same time, or in one finished TTP directory, and
    files that were written in turns.
    Where each rank has one file of a kind, no times of the tree can be held against each other.
    """
    units = _units(files)
    gaps = _gaps(units)
    gap = min(gaps) if gaps and min(gaps) > 0 else None
    certain = _by_number(units, trusts_numbers=trusts_numbers)
    if not gaps:
        groups = _joined(units, [*certain, *_by_time(_written_apart(units), NEAR_NS)])
        if groups is not None:
            alone = [replace(each, by_times_alone=len({unit.line[2] for unit in each.units}) > 1) for each in groups]
            return _in_order_of_numbers(alone)
    elif gap is not None:
        near = min(NEAR_NS, gap // _APART)
        # Slow disks keep ranks apart longer. Between launches is more time than between two saves.
        intervals = _gaps(units, of_one_launch=True)
        wide = min([gap, *intervals]) // _NEAR_PART if intervals or trusts_numbers else near
        by_time = [*_by_time(units, near), *(each for each in _by_time(units, wide) if _have_one_number(*each))]
        groups = _joined(units, [*certain, *by_time, *_by_directory(units, gap)])
        groups = None if groups is None else _in_turns(groups, near)
        # Launches of a job do not overlap in time.
        if groups is not None and all(one.end < other.begin for one, other in _successions(groups)):
            ordered = sorted(groups, key=lambda each: (each.begin, each.key))
            return ordered, all(map(_may_follow, ordered, ordered[1:]))
    return _in_order_of_numbers(_joined(units, certain) or [Group((unit,)) for unit in units])


def _units(files: Iterable[Ranked]) -> list[Unit]:
    by_key: dict[str, list[Ranked]] = defaultdict(list)
    for ranked in sorted(files, key=lambda ranked: ranked.file.path):
        file = ranked.file
        named = f"{file.family}_{file.relaunch}/rank_{ranked.rank}"
        by_key[named if file.kind is Kind.PERIODIC else file.path].append(ranked)
    return [Unit(key, tuple(members)) for key, members in sorted(by_key.items())]


def _have_one_number(one: Unit, other: Unit) -> bool:
    return one.line[:2] == other.line[:2] and one.relaunch == other.relaunch


def _gaps(units: Iterable[Unit], *, of_one_launch: bool = False) -> list[int]:
    """The times between two saves of one line that follow each other, in nanoseconds; `of_one_launch`: of one number.

    Times prove something where every line's files were written in the order of their numbers and counters: where all
    of these are positive. A copy makes all times alike, or gives those of the copying.
    """
    lines: dict[tuple[str, str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for ranked in (ranked for unit in units for ranked in unit.files):
        file, line = ranked.file, ranked.line
        if line[0] in _NUMBERED and file.optimizer_step is not None:
            lines[line].append((file.relaunch, file.optimizer_step, file.mtime_ns))
    following = [pair for order in lines.values() for pair in pairwise(sorted(order))]
    return [later[2] - earlier[2] for earlier, later in following if not of_one_launch or earlier[0] == later[0]]


def _written_apart(units: Iterable[Unit]) -> list[Unit]:
    """Those that were written at a time of their own: several ranks never write in one nanosecond, a copy may."""
    times: dict[int, list[Unit]] = defaultdict(list)
    for unit in units:
        times[_written(unit)].append(unit)
    return [same[0] for same in times.values() if len(same) == 1]


def are_near(times: Sequence[int], lines: Iterable[Sequence[int]] = (), interval: int = 0) -> bool:
    """Whether files that were written at these times, in nanoseconds, can be of one save.

    Another start needs longer than `NEAR_NS`, and then about as long to the step as the first one. `lines`: the sorted
    times of all saves of each file's line; `interval` is the time between two saves where a line has only one.
    """
    spread = max(times) - min(times)
    gaps: list[int] = []
    for at, line in zip(times, lines, strict=False) if spread > NEAR_NS else ():
        place = bisect_left(line, at)
        beside = (*line[max(place - 1, 0) : place], *line[place + 1 : place + 2])
        gaps += [abs(other - at) for other in beside] or [interval]
    return spread <= max(NEAR_NS, min(gaps, default=0) // _NEAR_PART)


def _by_number(units: Iterable[Unit], *, trusts_numbers: bool) -> list[tuple[Unit, Unit]]:
    """Equal numbers of one family on several ranks, where no rank can have missed a launch.

    All ranks have the same numbers, and at least two saves of each: ranks train in step, so that where one has saved
    twice, every rank has saved once. A rank that missed a launch shows as another that has a single save of it. One is
    enough where the user says that none did.
    """
    families: dict[str, dict[int, dict[int, Unit]]] = defaultdict(lambda: defaultdict(dict))
    for unit in units:
        if unit.line[0] == Kind.PERIODIC.value:
            families[unit.line[1]][unit.line[2]][unit.relaunch] = unit
    pairs: list[tuple[Unit, Unit]] = []
    for ranks in families.values():
        numbers = [set(numbered) for numbered in ranks.values()]
        saves = [len({ranked.state for ranked in unit.files}) for held in ranks.values() for unit in held.values()]
        if all(each == numbers[0] for each in numbers) and (trusts_numbers or min(saves) > 1):
            first, *others = ranks.values()
            pairs += [(unit, other[number]) for other in others for number, unit in first.items()]
    return pairs


def _by_directory(units: Iterable[Unit], gap: int) -> list[tuple[Unit, Unit]]:
    """Files of one state in one TTP directory that was renamed, less than `gap` nanoseconds apart.

    All savers were done when it was renamed (mindspore.md §7), and a finished directory is never written to again:
    renaming another to its name fails (`_rename_save_result` in `train/callback/_train_fault_tolerance.py`). But an
    unfinished one may have held files of an earlier launch.
    """
    directories: dict[tuple[object, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        path = unit.files[0].file.path
        if unit.line[0] == Kind.TTP.value and not unfinished_ttp_directory(path):
            directories["/".join(path.split("/")[:-2]), unit.files[0].state].append(unit)
    return [
        (one, other)
        for members in directories.values()
        for one, other in pairwise(sorted(members, key=_written))
        if _written(other) - _written(one) < gap
    ]


def _written(unit: Unit) -> int:
    return unit.files[0].file.mtime_ns


def _by_time(units: Iterable[Unit], near: int) -> list[tuple[Unit, Unit]]:
    """Units with files of one state that were written within `near` nanoseconds of each other."""
    states: dict[tuple[int | None, int | None, int | None], list[tuple[int, str, Unit]]] = defaultdict(list)
    for unit in units:
        for ranked in unit.files:
            if ranked.file.optimizer_step is not None:
                states[ranked.state].append((ranked.file.mtime_ns, ranked.file.path, unit))
    pairs: list[tuple[Unit, Unit]] = []
    for written in states.values():
        written.sort(key=lambda each: each[:2])
        pairs += [(one[2], other[2]) for one, other in pairwise(written) if other[0] - one[0] <= near]
    return pairs


def _joined(units: Sequence[Unit], pairs: Iterable[tuple[Unit, Unit]]) -> list[Group] | None:
    """The units in groups, joined by the pairs; None if that would give a launch two numbers of one line."""
    parent = {unit.key: unit.key for unit in units}

    def root(key: str) -> str:
        while parent[key] != key:
            parent[key] = key = parent[parent[key]]
        return key

    for one, other in pairs:
        parent[root(one.key)] = root(other.key)
    members: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        members[root(unit.key)].append(unit)
    groups = [Group(tuple(each)) for each in members.values()]
    clean = all(len({unit.line for unit in each.units}) == len(each.units) for each in groups)
    return groups if clean else None


def _in_turns(groups: Iterable[Group], near: int) -> list[Group]:
    """The launches with those in one whose ModelCheckpoints wrote in turns: a job has one launch at a time."""
    joined: list[Group] = []
    for each in sorted(groups, key=lambda group: (group.begin, group.key)):
        both = Group((*joined[-1].units, *each.units)) if joined and each.begin < joined[-1].end else None
        if both is not None and _is_one_launch(both, near):
            joined[-1] = both
        else:
            joined.append(each)
    return joined


def _is_one_launch(group: Group, near: int) -> bool:
    """Whether files may be of one launch: one number in each line, and with time the counters grow.

    Files of one state are written within `near` nanoseconds.
    """
    if {unit.line[0] for unit in group.units} != {Kind.PERIODIC.value}:
        return False
    if not group.has_counters or len({unit.line for unit in group.units}) < len(group.units):
        return False
    in_time = sorted(group.files, key=lambda ranked: (ranked.file.mtime_ns, ranked.file.optimizer_step or 0))
    counters = [ranked.file.optimizer_step or 0 for ranked in in_time]
    states: dict[tuple[int | None, int | None, int | None], list[int]] = defaultdict(list)
    for ranked in in_time:
        states[ranked.state].append(ranked.file.mtime_ns)
    return counters == sorted(counters) and all(times[-1] - times[0] <= near for times in states.values())


def _successions(groups: Iterable[Group]) -> list[tuple[Group, Group]]:
    """Launches of which one is the next of another in some line."""
    lines: dict[tuple[str, str, int], list[tuple[int, Group]]] = defaultdict(list)
    for each in groups:
        for line, number in each.numbers.items():
            lines[line].append((number, each))
    numbered = [sorted(members, key=lambda member: member[0]) for members in lines.values()]
    return [(one, other) for members in numbered for (_, one), (_, other) in pairwise(members)]


def _may_follow(launch: Group, later: Group) -> bool:
    """Whether times that say so are borne out: a launch goes on where another was, or MindSpore numbered it."""
    return launch.is_before(later) or later.greatest_counter >= launch.least_counter


def _in_order_of_numbers(groups: Sequence[Group]) -> tuple[list[Group], bool]:
    """By the numbers of the names, and where these do not tell by times and counters, as a guess."""
    guess = sorted(groups, key=lambda each: (each.begin, each.least_counter, each.key))
    place = {each.key: number for number, each in enumerate(guess)}
    sorter = TopologicalSorter[str](dict.fromkeys(place, ()))
    for one, other in _successions(groups):
        sorter.add(other.key, one.key)
    sorter.prepare()
    ready: list[int] = []
    ordered: list[Group] = []
    while sorter.is_active():
        for key in sorter.get_ready():
            heappush(ready, place[key])
        following = guess[heappop(ready)]
        ordered.append(following)
        sorter.done(following.key)
    return ordered, all(one.is_before(other) for one, other in pairwise(ordered))
