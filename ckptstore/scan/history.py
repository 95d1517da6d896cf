"""Reconstructs launches, steps and world size from the files of a run that nobody registered.

Names and contents of such files lie (mindspore.md §3). A file has a step where every way to read its launch's names and
counters gives the same; else it is uncertain, with a reason. Files that may be of two launches are never put into one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ckptstore.core.model import Grade, Kind, Lengths
from ckptstore.core.naming import unfinished_ttp_directory
from ckptstore.scan.found import BY_HAND, PlacedFile, Trusted, Uncertain
from ckptstore.scan.launches import Group, Ranked, are_near, group
from ckptstore.scan.steps import (
    OF_LENGTH,
    Reading,
    Verdict,
    assumed,
    by_counter,
    counts_itself,
    fitting_lengths,
    has_names,
    has_several_names,
    may_begin_after,
    may_begin_between_epochs,
    may_lag,
    own_lengths,
    read,
    shows_lag,
    skipping,
    stated_length,
    whole_number,
    without_reading,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ckptstore.scan.found import FoundFile


@dataclass(frozen=True)
class PlacedLaunch:
    """The files of one launch that have a step, by step, rank and path.

    `lengths` are the steps an epoch that its names allow, for each way to read them (empty: they tell nothing). `key`
    stays the same when files of newer launches are added.
    """

    key: str
    lengths: tuple[Lengths, ...]
    files: tuple[PlacedFile, ...]

    @property
    def steps_per_epoch(self) -> int | None:
        """The one that is known; None where it is open."""
        return _only(self.lengths)


@dataclass(frozen=True)
class Reconstruction:
    """What the files show: launches, oldest first, what is uncertain, and what people must know of it."""

    launches: tuple[PlacedLaunch, ...] = ()
    uncertain: tuple[Uncertain, ...] = ()
    world_size: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stated:
    """What the user says of a tree.

    `steps_per_epoch` is that of the dataset (None: by what is there), `trusted` are witnesses that are enough alone,
    `steps` the steps of files by path. `replicas` says who is whose replica, as a resolution takes it (None: nobody).
    """

    steps_per_epoch: int | None = None
    trusted: frozenset[Trusted] = frozenset()
    steps: Mapping[str, int] = field(default_factory=dict)
    replicas: str | None = None


NOTHING_STATED = Stated()


def reconstruct(
    found: Sequence[FoundFile],
    *,
    world_size: int | None = None,
    ranks_seen: Iterable[int] = (),
    stated: Stated = NOTHING_STATED,
) -> Reconstruction:
    """The launches, steps and world size of the files of one run, in whatever order they are given.

    `world_size` is the user's word (None: the highest rank that anything names, with a warning); `ranks_seen` are
    ranks that have a directory, with files or without.
    """
    warnings: list[str] = []
    seen = set(ranks_seen)
    named = [file for file in found if rank_of(file) is not None]
    # A job of one rank has no directory `rank_0` but for graceful exits (mindspore.md §5).
    of_exits = named and all(file.kind is Kind.GRACEFUL_EXIT and rank_of(file) == 0 for file in named)
    unranked = seen <= {0} if of_exits else not seen and not named
    ranked: list[Ranked] = []
    uncertain: list[Uncertain] = []
    for file in found:
        rank = rank_of(file)
        if rank is None and (unranked or world_size == 1):
            rank = 0
        if rank is None:
            reason = "nothing says which rank wrote it"
            uncertain.append(Uncertain(file.path, None, reason, "--world-size 1"))
        elif _inner_rank(file) not in (None, rank):
            reason = f"its path is of rank {rank}, its content of rank {_inner_rank(file)}"
            uncertain.append(Uncertain(file.path, None, reason, "", contradicted=True))
        else:
            ranked.append(Ranked(file, rank, *_claimed(file)))
    ranks = seen | {rank for file in found for rank in (file.rank, _inner_rank(file)) if rank is not None}
    size = size_of_job(world_size, ranks, warnings)

    groups, is_ordered = group(ranked, trusts_numbers=Trusted.NUMBERS in stated.trusted)
    if len(groups) > 1 and not is_ordered:
        warnings.append("times and names do not tell the order of all launches: it is a guess")
    apart = _kept_apart(groups)
    if apart:
        warnings.append(
            f"nothing proves which files of several ranks are of one launch, so they are kept apart: {apart}; "
            f"if no rank missed a launch: {Trusted.NUMBERS.remedy}"
        )
    launches: list[PlacedLaunch] = []
    judged = [
        (each, lengths, _taken(each, verdicts, lengths, stated)) for each, lengths, verdicts in _judged(groups, stated)
    ]
    by_evidence = [
        [one for one in verdicts if isinstance(one, PlacedFile) and one.file.path not in stated.steps]
        for _, _, verdicts in judged
    ]
    mixed = _mixed(by_evidence)
    if Trusted.NUMBERS in stated.trusted:
        mixed = {path: one for path, one in mixed.items() if one.contradicted}
    for each, lengths, verdicts in judged:
        placed = [one for one in verdicts if isinstance(one, PlacedFile) and one.file.path not in mixed]
        uncertain += [one for one in verdicts if isinstance(one, Uncertain)]
        if placed:
            placed.sort(key=lambda one: (one.global_step, one.rank, one.file.path))
            launches.append(PlacedLaunch(each.key, lengths, tuple(placed)))
    uncertain += mixed.values()
    uncertain.sort(key=lambda one: one.path)
    return Reconstruction(tuple(launches), tuple(uncertain), size, tuple(warnings))


def _only(lengths: Sequence[Lengths]) -> int | None:
    return lengths[0].only if len(lengths) == 1 else None


def _taken(launch: Group, verdicts: Iterable[Verdict], lengths: Sequence[Lengths], stated: Stated) -> list[Verdict]:
    """The verdicts on a launch's files, with what the user says: of steps, and of witnesses that are enough alone."""
    files = {each.file.path: each for each in launch.files}
    length = stated.steps_per_epoch or _only(lengths)
    taken: list[Verdict] = []
    for one in verdicts:
        path = one.file.path if isinstance(one, PlacedFile) else one.path
        file = files[path]
        if path in stated.steps:
            taken.append(PlacedFile(file.file, file.rank, stated.steps[path], Grade.ASSUMED, "its step was stated"))
        elif isinstance(one, PlacedFile) or one.contradicted:
            taken.append(one)
        elif (told := assumed(file, length, stated.trusted)) is not None:
            taken.append(PlacedFile(file.file, file.rank, told[0], Grade.ASSUMED, told[1]))
        else:
            taken.append(replace(one, remedy=_whole_remedy(one.remedy, file, length, stated)))
    return taken


def _whole_remedy(remedy: str, file: Ranked, length: int | None, stated: Stated) -> str:
    """An option that would place a file with what it needs beside it: a name is read by the length of an epoch."""
    if stated.steps_per_epoch is not None and OF_LENGTH not in remedy:
        return f"{remedy} {OF_LENGTH.replace('E', str(stated.steps_per_epoch))}"
    needs_length = remedy == Trusted.NAME.remedy and length is None and file.epoch != 1 and file.file.named_step is None
    return f"{remedy} {OF_LENGTH}" if needs_length else remedy


_Judged = tuple[Group, tuple[Lengths, ...], list[Verdict]]
"""A launch, the steps an epoch that fit it, for each way to read its names, and what is known of its files."""


def _judged(groups: Sequence[Group], stated: Stated) -> list[_Judged]:
    """What is known of every launch.

    Where no file of the tree can lag, the counter is the step if there is a way to read the names. Else the counter is
    no witness, and a name is one only where it is known where its launch began: both agree by chance too, where a
    launch began as many steps inside an epoch as updates were skipped.
    """
    told = {each.key: stated.steps_per_epoch or stated_length(each.files) for each in groups}
    lengths = _completed(told, groups)
    judged = _where_each_step_counts(groups, lengths, trusts_counter=Trusted.COUNTER in stated.trusted)
    if judged is not None:
        return judged
    known = {key: () if length is None else (Lengths(length, length),) for key, length in lengths.items()}
    return [(each, known[each.key], [skipping(file, lengths[each.key]) for file in each.files]) for each in groups]


def _where_each_step_counts(
    groups: Sequence[Group], told: Mapping[str, int | None], *, trusts_counter: bool
) -> list[_Judged] | None:
    """What is known of every launch if each step is an update; None if one shows that some are not."""
    lags = any(may_lag(each.files) for each in groups)
    common = set(told.values())
    if not trusts_counter and (lags or len(common) > 1):
        return None
    begins = _Begins.of(groups)
    read_as = _readings(groups, begins, common.pop() if len(common) == 1 else None)
    lags = lags or any(shows_lag(each.files, read_as.of[each.key], read_as.among.only) for each in groups)
    if lags and not trusts_counter:
        return None
    return [_by_counters(each, read_as, begins, is_assumed=lags) for each in groups]


@dataclass(frozen=True)
class _Begins:
    """What launches may have begun from: the counters of all files, each with the launches that have a file of it.

    `in_order` are the counters, sorted. `has_replaced` tells that a file may have taken the place of another.
    """

    holders: Mapping[int, set[str]]
    in_order: Sequence[int]
    has_replaced: bool

    @classmethod
    def of(cls, groups: Iterable[Group]) -> _Begins:
        """Those of all launches of a tree."""
        holders: dict[int, set[str]] = defaultdict(set)
        has_replaced = False
        for each in groups:
            for ranked in each.files:
                has_replaced = has_replaced or _may_replace(ranked.file)
                if ranked.file.optimizer_step is not None:
                    holders[ranked.file.optimizer_step].add(each.key)
        return cls(holders, sorted(holders), has_replaced)

    def is_of_another(self, launch: Group, step: int) -> bool:
        """Whether another launch has a file of so many updates."""
        return bool(self.holders.get(step, set()) - {launch.key})

    def may_be_of(self, launch: Group, lengths: Lengths) -> bool:
        """Whether a launch may have begun between two epochs, or with a file that is there or was replaced."""
        if may_begin_between_epochs(launch.files, lengths) or self.has_replaced:
            return True
        before = self.in_order[: bisect_right(self.in_order, launch.least_counter)][-_MOST_BEGINS:]
        return any(self.is_of_another(launch, step) and may_begin_after(launch.files, lengths, step) for step in before)


_MOST_BEGINS = 1000


@dataclass(frozen=True)
class _Readings:
    """How the names of each launch are to be read where each step is an update (None: there is no way).

    `possible` are the steps an epoch of all ways to read them, `among` those that fit all launches. `is_shown` tells
    that it is these: one file fits some length by itself.
    """

    of: Mapping[str, Reading | None]
    possible: Mapping[str, tuple[Lengths, ...]]
    among: Lengths
    is_shown: bool


def _readings(groups: Sequence[Group], begins: _Begins, common: int | None) -> _Readings:
    """How the names of the launches of a tree are to be read.

    `common` is the steps an epoch that is known of the run. Else it is what fits all launches, if anything does: each
    as MindSpore names files, or with epochs of its own where it began from another launch's file, or was not the first.
    """
    as_named = {each.key: fitting_lengths(each.files) for each in groups}
    own = {each.key: own_lengths(each.files, _start_of(each, begins)) for each in groups}
    every = {key: tuple(dict.fromkeys(filter(None, (as_named[key], own[key])))) for key in as_named}
    is_shown = True
    among = Lengths() if common is None else Lengths(common, common)
    if common is None:
        possible = [_either(as_named[each.key], own[each.key]) for each in groups]
        shown = [
            lengths
            for each, lengths in zip(groups, possible, strict=True)
            if lengths is not None and lengths.only is not None and has_several_names(each.files)
        ]
        for lengths in shown or possible:
            among = among if lengths is None else among.within(lengths)
        is_shown = bool(shown)
    readings: dict[str, Reading | None] = {}
    for each in groups:
        named, begun = as_named[each.key], own[each.key]
        fits = named.within(among) if named is not None else Lengths(1, 0)
        fits_own = begun.within(among) if begun is not None else Lengths(1, 0)
        if fits.some():
            readings[each.key] = read(each.files, fits)
        elif fits_own.some():
            readings[each.key] = Reading(fits_own, begins_anew=True)
        elif named is not None and common is None and has_names(each.files) and begins.may_be_of(each, named):
            readings[each.key] = read(each.files, named)
        else:
            readings[each.key] = Reading(begun, begins_anew=True) if begun is not None else None
    return _Readings(readings, every, among, is_shown)


def _either(one: Lengths | None, other: Lengths | None) -> Lengths | None:
    """Lengths among which are all of both."""
    if one is None or other is None:
        return one or other
    high = None if one.high is None or other.high is None else max(one.high, other.high)
    return Lengths(min(one.low, other.low), high)


def _start_of(launch: Group, begins: _Begins) -> Callable[[int], bool]:
    """Which steps a launch with epochs of its own may have begun after: any, where its files have a number."""
    is_later = any(launch.numbers.values())
    return lambda step: is_later or begins.is_of_another(launch, step)


def _by_counters(launch: Group, readings: _Readings, begins: _Begins, *, is_assumed: bool) -> _Judged:
    """What is known of a launch where each step is an update."""
    reading, among = readings.of[launch.key], readings.among
    if reading is None:
        return launch, (), without_reading(launch.files, among.only)
    doubts = []
    if not reading.lengths.within(among).some():
        doubts.append(f"steps an epoch: {reading.lengths}, but {among} in other launches")
    elif reading.begins_anew:
        doubts.append("epochs began anew with its launch")
    elif (reading.lengths.only is None or not readings.is_shown) and not counts_itself(launch.files):
        doubts.append(f"steps an epoch: {reading.lengths}")
    if not reading.begins_anew and not begins.may_be_of(launch, reading.lengths):
        doubts.append("its launch began inside an epoch, after a step of which no file is there")
    if launch.by_times_alone:
        doubts.append("that its files are of one save is told by their times alone")
    grade = Grade.CONSISTENT if doubts else Grade.PROVEN
    if is_assumed:
        grade, doubts = Grade.ASSUMED, ["the optimizer's counter alone says so"]
    verdicts = [by_counter(file, reading, grade, "; ".join(doubts)) for file in launch.files]
    fitting = (reading.lengths,) if readings.is_shown else readings.possible[launch.key]
    return launch, () if Lengths() in fitting else fitting, verdicts


def _mixed(launches: Iterable[Iterable[PlacedFile]]) -> dict[str, Uncertain]:
    """Files of one step of a launch that its ranks did not write at one time: some may be of an earlier start.

    MindSpore numbers no names that users make (`directory` or `prefix` is a callable): a later start writes over files
    of an earlier one, and a rank that did not get as far still has the old file. A TTP directory is left out: it was
    renamed when all of it was there.
    """
    saves: dict[tuple[int, int], list[PlacedFile]] = defaultdict(list)
    for place, files in enumerate(launches):
        for one in files:
            if one.file.kind is not Kind.TTP:
                saves[place, one.global_step].append(one)
    shared = [files for files in saves.values() if len(files) > 1 and len({one.rank for one in files}) > 1]
    spread = [files for files in shared if not are_near([one.file.mtime_ns for one in files])]
    if not spread or _is_copied_rank_by_rank(shared):
        return {}
    times: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for one in (one for files in saves.values() for one in files):
        times[_line(one)].append(one.file.mtime_ns)
    for line in times.values():
        line.sort()
    # Of a line with one save, any other save of its rank bounds the interval: names may be new with each save.
    of_ranks: dict[int, list[int]] = defaultdict(list)
    for (_, _, rank), line in times.items():
        of_ranks[rank] += line
    interval = min((after - at for each in of_ranks.values() for at, after in pairwise(sorted(each))), default=0)
    mixed: dict[str, Uncertain] = {}
    reason = "ranks wrote their files of this step at different times: they may be of two launches"
    for place, step in (each for each, files in saves.items() if files in spread):
        files = saves[place, step]
        if are_near([one.file.mtime_ns for one in files], [times[_line(one)] for one in files], interval):
            continue
        is_contradicted = _interleave(step, {at: some for (launch, at), some in saves.items() if launch == place})
        remedy = BY_HAND if is_contradicted else Trusted.NUMBERS.remedy
        mixed |= {
            one.file.path: Uncertain(one.file.path, one.global_step, reason, remedy, contradicted=is_contradicted)
            for one in files
        }
    return mixed


def _interleave(step: int, saves: Mapping[int, Sequence[PlacedFile]]) -> bool:
    """Whether a launch wrote a file of a step after one of a later step, or before one of an earlier step."""
    times = {at: [one.file.mtime_ns for one in files] for at, files in saves.items()}
    return any(max(times[min(at, step)]) > min(times[max(at, step)]) for at in times if at != step)


def _line(one: PlacedFile) -> tuple[str, str, int]:
    return one.file.kind.value, one.file.family, one.rank


def _is_copied_rank_by_rank(saves: Iterable[Sequence[PlacedFile]]) -> bool:
    """Whether the times are those of a copy of one rank after another, with the same intervals: they tell nothing."""
    shifts: dict[int, list[int]] = defaultdict(list)
    times: dict[int, list[int]] = defaultdict(list)
    for files in saves:
        first = min(files, key=lambda one: (one.rank, one.file.mtime_ns))
        for one in files:
            shifts[one.rank].append(one.file.mtime_ns - first.file.mtime_ns)
            times[one.rank].append(one.file.mtime_ns)
    spans = sorted((min(each), max(each)) for each in times.values())
    alike = all(len(each) > 1 and are_near(each) for each in shifts.values())
    return alike and all(one[1] < other[0] for one, other in pairwise(spans))


def _completed(lengths: Mapping[str, int | None], groups: Iterable[Group]) -> dict[str, int | None]:
    """Steps an epoch of every launch: where its own files do not tell, those of the others if these are all alike."""
    known = {length for length in lengths.values() if length is not None}
    common = known.pop() if len(known) == 1 else None
    return {each.key: lengths.get(each.key) or common for each in groups}


def _may_replace(file: FoundFile) -> bool:
    """Whether a file may have been written over one of an earlier launch (mindspore.md §5, §7)."""
    if file.kind is Kind.TTP:
        return bool(unfinished_ttp_directory(file.path))
    return file.kind is Kind.GRACEFUL_EXIT and file.named_step is None


def _claimed(file: FoundFile) -> tuple[int | None, int | None]:
    """Epoch and step in it by the name, or by what MindSpore put into a graceful exit's file, which has no such name.

    MindSpore: `_do_step_end` in `train/callback/_on_request_exit.py`.
    """
    if file.epoch is None and file.kind is Kind.GRACEFUL_EXIT:
        epoch, step, length = (whole_number(file.info.get(name)) for name in ("epoch_num", "step_num", "batch_num"))
        if epoch and step and length and min(step, length) > 0:
            return epoch, (step - 1) % length + 1
    return file.epoch, file.step_in_epoch


def _inner_rank(file: FoundFile) -> int | None:
    return whole_number(file.info.get("cur_rank"))


def rank_of(file: FoundFile) -> int | None:
    """The rank that wrote a file, by its path, or else by what is in it; None where neither says one."""
    return _inner_rank(file) if file.rank is None else file.rank


def size_of_job(given: int | None, ranks: set[int], warnings: list[str]) -> int:
    """How many ranks a job had, as its user says, or else by the highest one that is named: then that is said."""
    inferred = max(ranks, default=0) + 1
    if given is None:
        why = f"the highest rank found is {inferred - 1}" if ranks else "no file or directory names a rank"
        warnings.append(f"{why}: taken to be a job of {inferred}; if it had more ranks, say so with --world-size")
        return inferred
    if given < inferred:
        warnings.append(f"rank {inferred - 1} was found, though --world-size says {given}")
    return given


def _kept_apart(groups: Iterable[Group]) -> str:
    """The families whose files of several ranks could not be put into launches."""
    alone: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for each in groups:
        if len({unit.line[2] for unit in each.units}) == 1:
            for unit in each.units:
                kind, family, rank = unit.line
                alone[kind, family, unit.relaunch].add(rank)
    return ", ".join(sorted({f"{family} ({kind})" for (kind, family, _), ranks in alone.items() if len(ranks) > 1}))
