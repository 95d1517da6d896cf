"""Groups unregistered files into launches: by their times, or, if these are lost, by the numbers that MindSpore gave.

Files of several ranks are grouped only if that is evident; otherwise each rank has launches of its own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from ckptstore.core.model import Kind
from ckptstore.core.naming import unfinished_ttp_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ckptstore.evidence.unregistered import FoundFile

NEAR_NS = 2_000_000_000
"""In nanoseconds. Files of one save are written within this time. No launch gets from its start to a save within this
time: importing MindSpore alone takes as long (mindspore.md §10)."""

_APART = 4  # files of one state are of one launch if they are nearer than a quarter of the time between two saves
NEAR_PART = 2
"""Files of one save are nearer to each other than half of the time to the save before and after. A second start that
writes the same state again needs about as much time as the first one, and the time to start."""

_NUMBERED = (Kind.PERIODIC, Kind.DYING_GASP)


@dataclass(frozen=True)
class Ranked:
    """A found file, its rank, and the epoch and step in it that the file claims (None: it claims none)."""

    file: FoundFile
    rank: int
    epoch: int | None
    step_in_epoch: int | None

    @property
    def line(self) -> tuple[str, str, int]:
        """The series of the file: its kind, family and rank. In one launch, all files of a line have one number."""
        return self.file.kind.value, self.file.family, self.rank

    @property
    def named(self) -> tuple[object, ...]:
        """The part of the name that all files of one save and one callback share."""
        number = None if self.file.kind is Kind.DYING_GASP else self.file.relaunch  # each rank numbers its own
        return self.file.kind, self.file.family, number, self.epoch, self.step_in_epoch

    @property
    def of_one_launch(self) -> str:
        """A key that is equal for files that are of one launch by their names.

        MindSpore numbers the files of a ModelCheckpoint once a launch, with a number that is not in use
        (`_chg_ckpt_file_name_if_same_exist` in `train/callback/_checkpoint.py`).
        """
        numbered = f"{self.file.family}_{self.file.relaunch}/rank_{self.rank}"
        return numbered if self.file.kind is Kind.PERIODIC else self.file.path


@dataclass(frozen=True)
class Group:
    """Files of one launch, by path. `by_times_alone`: only their times show that they are of one launch.

    `key` stays the same if other files are found, as long as the first file of the group is there.
    """

    key: str
    files: tuple[Ranked, ...]
    by_times_alone: bool = False

    @cached_property
    def begin(self) -> int:
        """When its first file was written, in nanoseconds since 1970."""
        return min(ranked.file.mtime_ns for ranked in self.files)

    @cached_property
    def counters(self) -> tuple[int, int]:
        """The lowest and the highest counter of its files; 0 for one that has none."""
        counters = [ranked.file.optimizer_step or 0 for ranked in self.files]
        return min(counters), max(counters)

    @cached_property
    def numbers(self) -> dict[tuple[str, str, int], int]:
        """The number of every line that MindSpore numbers."""
        return {ranked.line: ranked.file.relaunch for ranked in self.files if ranked.file.kind in _NUMBERED}

    def is_before(self, other: Group) -> bool:
        """Whether the numbers that MindSpore gave prove that this launch was the earlier one."""
        mine = self.numbers
        return any(line in mine and mine[line] < number for line, number in other.numbers.items())


def group(files: Iterable[Ranked], *, trusts_numbers: bool) -> tuple[list[Group], bool]:
    """The launches, oldest first, and whether that order is known (else it is a guess).

    `trusts_numbers`: the user says that no rank missed a launch. Files with equal numbers are then of one launch.
    """
    ordered = sorted(files, key=lambda ranked: (ranked.file.mtime_ns, ranked.file.path))
    certain = _certain_families(ordered, least=1 if trusts_numbers else 2)
    gaps = _gaps(ordered)
    are_lost = min(gaps) <= 0 if gaps else len({ranked.file.mtime_ns for ranked in ordered}) < len(ordered)
    if are_lost:
        found = _by_numbers(ordered, certain)
        return found, all(one.is_before(other) for one, other in pairwise(found))
    gap = min(gaps, default=NEAR_NS * _APART)
    wide = gap // NEAR_PART if _gaps(ordered, of_one_launch=True) else 0
    if trusts_numbers:
        wide = gap if gaps else sum(ranked.file.mtime_ns for ranked in ordered[-1:])
    saves = _Saves(min(NEAR_NS, gap // _APART), wide, gap, certain, trusts_numbers=trusts_numbers)
    for ranked in ordered:
        saves.add(ranked)
    if not gaps:  # one file of each line: nothing shows that the times are those of writing
        found = _named(saves.found, by_times_alone=not trusts_numbers)
        return found, all(one.is_before(other) for one, other in pairwise(found))
    found = _in_turn(saves.found)
    return found, all(one.is_before(other) or other.counters[1] >= one.counters[0] for one, other in pairwise(found))


def _gaps(files: Iterable[Ranked], *, of_one_launch: bool = False) -> list[int]:
    """The times between consecutive saves of each line, in nanoseconds; `of_one_launch`: of saves with one number.

    Times are evidence only if all of these are positive: each line's files were then written in the order of their
    numbers and counters. Copied files may all have one time, or the times of the copying.
    """
    lines: dict[tuple[str, str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for file, line in ((ranked.file, ranked.line) for ranked in files):
        if file.kind in _NUMBERED and file.optimizer_step is not None:
            lines[line].append((file.relaunch, file.optimizer_step, file.mtime_ns))
    following = [pair for order in lines.values() for pair in pairwise(sorted(order))]
    return [later[2] - earlier[2] for earlier, later in following if not of_one_launch or earlier[0] == later[0]]


class _Save:
    """The files of a save, in the order of their times, with the facts that decide whether another file is of it."""

    def __init__(self) -> None:
        self.files: list[Ranked] = []
        self.counter: int | None = None  # they have one, or none
        self.lines: set[tuple[str, str, int]] = set()
        self.names: set[tuple[object, ...]] = set()
        self.directories: set[str] = set()  # the finished ones of TTP

    def add(self, new: Ranked) -> None:
        self.files.append(new)
        self.counter = new.file.optimizer_step if self.counter is None else self.counter
        self.lines.add(new.line)
        self.names.add(new.named)
        self.directories |= {_finished_directory(new)} - {""}


class _Saves:
    """Puts files, which are given in the order of their times, into saves. All times are in nanoseconds.

    Files of one counter are of one save if they were written

    - within `near`;
    - within `wide`, under the same name;
    - at any time, under the same name and in a family that is `certain`;
    - within `gap`, in one TTP directory that was renamed. All savers were done then (mindspore.md §7), and nothing is
      written there again (`_rename_save_result` in `train/callback/_train_fault_tolerance.py`).
    """

    def __init__(self, near: int, wide: int, gap: int, certain: Collection[str], *, trusts_numbers: bool) -> None:
        self._near, self._wide, self._gap = near, wide, gap
        self._certain, self._trusts_numbers = certain, trusts_numbers
        self._latest: dict[object, _Save] = {}
        self._saves: list[_Save] = []

    def add(self, new: Ranked) -> None:
        """Put a file into a save, or begin one with it."""
        keys = [key for key in (new.file.optimizer_step, new.named) if key is not None]
        known = (self._latest[key] for key in keys if key in self._latest)
        save = next((save for save in known if self._is_of(new, save)), None)
        if save is None:
            save = _Save()
            self._saves.append(save)
        save.add(new)
        self._latest |= dict.fromkeys(keys, save)

    @property
    def found(self) -> list[list[Ranked]]:
        return [save.files for save in self._saves]

    def _is_of(self, new: Ranked, save: _Save) -> bool:
        counter = new.file.optimizer_step
        if (None not in (counter, save.counter) and counter != save.counter) or new.line in save.lines:
            return False
        is_alike = new.named in save.names
        since = new.file.mtime_ns - save.files[-1].file.mtime_ns
        if since <= self._near:
            return is_alike or counter is not None
        if _finished_directory(new) in save.directories:
            return since < self._gap
        if new.file.kind is Kind.DYING_GASP and not self._trusts_numbers:  # two starts may soon fail at one step
            return False
        is_certain = new.file.kind is Kind.PERIODIC and new.file.family in self._certain
        return is_alike and (is_certain or new.file.mtime_ns - save.files[0].file.mtime_ns <= self._wide)


def _finished_directory(ranked: Ranked) -> str:
    path = ranked.file.path
    if ranked.file.kind is not Kind.TTP or unfinished_ttp_directory(path):
        return ""
    return path.rpartition("/")[0].rpartition("/")[0]


class _Launch:
    """A launch with those of its saves that were looked at so far, in the order of their times."""

    def __init__(self, save: Sequence[Ranked]) -> None:
        self.files = list(save)
        counters = [each.file.optimizer_step for each in save if each.file.optimizer_step is not None]
        self.lowest, self.highest = min(counters, default=None), max(counters, default=None)
        self.numbers = {each.line: each.file.relaunch for each in save}
        self.is_over = any(each.file.kind is not Kind.PERIODIC for each in save)  # an exit or a fault ends it

    def may_go_on(self, later: _Launch) -> bool:
        """Whether `later` continues this launch: its counters are higher, and no line has another number."""
        if self.is_over or any(self.numbers.get(line, number) != number for line, number in later.numbers.items()):
            return False
        if later.lowest is None or self.highest is None:
            return later.numbers.keys() <= self.numbers.keys()
        return later.lowest > self.highest

    def shares_callback(self, later: _Launch) -> bool:
        """Whether a callback saves in both, on any rank."""
        return not {line[:2] for line in self.numbers}.isdisjoint(line[:2] for line in later.numbers)

    def go_on(self, later: _Launch) -> None:
        """Add the files of `later`."""
        self.files += later.files
        self.numbers |= later.numbers
        self.lowest = later.lowest if self.lowest is None else self.lowest
        self.highest = self.highest if later.highest is None else later.highest
        self.is_over = later.is_over


def _in_turn(saves: Iterable[Sequence[Ranked]]) -> list[Group]:
    """The launches of saves, which are given in the order of their times: a job has one launch at a time.

    A save between two saves of one launch is of that launch. A launch that goes on where the one before it ended may be
    taken for that one: the steps are the same either way.
    """
    launches: list[_Launch] = []
    owners: dict[str, _Launch] = {}  # by `of_one_launch` of its files
    for each in map(_Launch, saves):
        names = [ranked.of_one_launch for ranked in each.files]
        owner = next((owners[name] for name in names if name in owners), None)
        chain = [*launches[launches.index(owner) :], each] if owner is not None and owner in launches else []
        if not chain and launches and launches[-1].shares_callback(each):
            chain = [launches[-1], each]
        if chain and all(one.may_go_on(other) for one, other in pairwise(chain)):
            for later in chain[1:]:
                chain[0].go_on(later)
            launches[-len(chain) + 1 :] = [chain[0]]
        else:
            launches.append(each)
        owners |= dict.fromkeys(names, launches[-1])
    return _named(launch.files for launch in launches)


def _certain_families(files: Iterable[Ranked], *, least: int) -> set[str]:
    """The families in which no rank can have missed a launch: files with equal numbers are then of one launch.

    All ranks of such a family have the same numbers, and at least two saves with each number. Ranks train in step: if
    one rank has saved twice, every rank has saved once. One save is enough if the user says that no rank missed a
    launch.
    """
    families: dict[str, dict[int, dict[int, set[object]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(set)))
    for file, ranked in ((ranked.file, ranked) for ranked in files):
        if file.kind is Kind.PERIODIC:
            families[file.family][ranked.rank][file.relaunch].add((file.optimizer_step, ranked.named))
    return {
        family
        for family, ranks in families.items()
        if len({frozenset(numbers) for numbers in ranks.values()}) == 1
        and min(len(saves) for numbers in ranks.values() for saves in numbers.values()) >= least
    }


def _by_numbers(files: Iterable[Ranked], certain: Collection[str]) -> list[Group]:
    launches: dict[object, list[Ranked]] = defaultdict(list)
    for ranked in files:
        is_certain = ranked.file.kind is Kind.PERIODIC and ranked.file.family in certain
        launches[(ranked.file.family, ranked.file.relaunch) if is_certain else ranked.of_one_launch].append(ranked)
    found = _named(launches.values())
    return sorted(found, key=lambda each: (each.files[0].file.relaunch, each.begin, each.counters[0], each.key))


def _named(launches: Iterable[Sequence[Ranked]], *, by_times_alone: bool = False) -> list[Group]:
    found: dict[str, Group] = {}
    for files in launches:
        keys = sorted({each.of_one_launch for each in files})
        key = next((key for key in keys if key not in found), files[0].file.path)
        by_path = sorted(files, key=lambda ranked: ranked.file.path)
        found[key] = Group(key, tuple(by_path), by_times_alone and len({each.rank for each in files}) > 1)
    return list(found.values())
