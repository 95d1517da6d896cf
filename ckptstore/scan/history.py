"""Reconstructs launches, steps and world size from the files of a run that nobody registered.

Names and contents of such files lie (mindspore.md §3). What two witnesses do not prove is uncertain, with a reason:
files that may be of two launches are never put into one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ckptstore.core.model import Kind
from ckptstore.core.naming import unfinished_ttp_directory
from ckptstore.scan.found import ProvenFile, Uncertain
from ckptstore.scan.launches import Group, Ranked, are_near, group
from ckptstore.scan.steps import (
    Verdict,
    bounded,
    exact,
    length_without_lag,
    may_lag,
    possible_starts,
    shows_lag,
    stated_length,
    truthful,
    whole_number,
    without_lag,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptstore.scan.found import FoundFile


@dataclass(frozen=True)
class ProvenLaunch:
    """The proven files of one launch, by step, rank and path; `steps_per_epoch` None where nothing tells it.

    `key` stays the same when files of newer launches are added.
    """

    key: str
    steps_per_epoch: int | None
    files: tuple[ProvenFile, ...]


@dataclass(frozen=True)
class Reconstruction:
    """What the files show: launches, oldest first, what is uncertain, and what people must know of it."""

    launches: tuple[ProvenLaunch, ...] = ()
    uncertain: tuple[Uncertain, ...] = ()
    world_size: int = 0
    warnings: tuple[str, ...] = ()


def reconstruct(
    found: Sequence[FoundFile], *, world_size: int | None = None, ranks_seen: Iterable[int] = ()
) -> Reconstruction:
    """The launches, steps and world size of the files of one run, in whatever order they are given.

    `world_size` is the user's word (None: the highest rank that anything names, with a warning); `ranks_seen` are
    ranks that have a directory, with files or without.
    """
    warnings: list[str] = []
    seen = set(ranks_seen)
    unranked = not seen and all(rank_of(file) is None for file in found)
    ranked: list[Ranked] = []
    uncertain: list[Uncertain] = []
    for file in found:
        rank = rank_of(file)
        if rank is None and (unranked or world_size == 1):
            rank = 0
        if rank is None or _inner_rank(file) not in (None, rank):
            reason = "nothing says which rank wrote it" if rank is None else "its path and its content name two ranks"
            uncertain.append(Uncertain(file.path, None, reason))
        else:
            ranked.append(Ranked(file, rank, *_claimed(file)))
    ranks = seen | {rank for file in found for rank in (file.rank, _inner_rank(file)) if rank is not None}
    size = _world_size(world_size, ranks, warnings)

    groups, is_ordered = group(ranked)
    if len(groups) > 1 and not is_ordered:
        warnings.append("times and names do not tell the order of all launches: it is a guess")
    apart = _kept_apart(groups)
    if apart:
        warnings.append(
            f"nothing proves which files of several ranks are of one launch, so they are kept apart: {apart}"
        )
    launches: list[ProvenLaunch] = []
    judged = _judged(groups, size)
    mixed = _mixed([[one for one in verdicts if isinstance(one, ProvenFile)] for _, _, verdicts in judged])
    for each, length, verdicts in judged:
        proven = [one for one in verdicts if isinstance(one, ProvenFile) and one.file.path not in mixed]
        uncertain += [one for one in verdicts if isinstance(one, Uncertain)]
        if proven:
            proven.sort(key=lambda one: (one.global_step, one.rank, one.file.path))
            launches.append(ProvenLaunch(each.key, length, tuple(proven)))
            if length is None:
                warnings.append(f"nothing tells how many steps an epoch of launch {each.key} has")
    uncertain += mixed.values()
    uncertain.sort(key=lambda one: one.path)
    return Reconstruction(tuple(launches), tuple(uncertain), size, tuple(warnings))


def _judged(groups: Sequence[Group], world_size: int) -> list[tuple[Group, int | None, list[Verdict]]]:
    """Every launch with its steps an epoch and what is known of its files' steps.

    Where no file of the tree can lag, the counter is the step, and names must say the same. Else a counter proves a
    step only where the launch's names are known to be truthful, or leave no choice; and names that count as many steps
    too few an epoch as updates are skipped in it look right, so that only MindSpore's own word for its length counts.
    """
    stated = {each.key: stated_length(each.files) for each in groups}
    lengths = _completed(stated, groups)
    if not any(may_lag(each.files) for each in groups):
        fitting = lengths
        if not any(stated.values()):
            fitting = _completed({each.key: length_without_lag(each.files) for each in groups}, groups)
        verdicts_of = _without_lag(groups, fitting)
        if verdicts_of is not None:
            return [(each, fitting[each.key], verdicts) for each, verdicts in zip(groups, verdicts_of, strict=True)]
    first = _first(groups, world_size, lengths)
    judged: list[tuple[Group, int | None, list[Verdict]]] = []
    for each in groups:
        length = lengths[each.key]
        verdicts: list[Verdict]
        if length is None:
            reason = "updates may have been skipped, and no file says how many steps an epoch has"
            verdicts = [Uncertain(file.file.path, file.file.optimizer_step, reason) for file in each.files]
        elif each is first and may_lag(each.files):
            verdicts = truthful(each.files, length)
        else:
            verdicts = bounded(each.files, length)
        judged.append((each, length, verdicts))
    return judged


def _mixed(launches: Iterable[Iterable[ProvenFile]]) -> dict[str, Uncertain]:
    """Files of one step of a launch that its ranks did not write at one time: some may be of an earlier start.

    MindSpore numbers no names that users make (`directory` or `prefix` is a callable): a later start writes over files
    of an earlier one, and a rank that did not get as far still has the old file. A TTP directory is left out: it was
    renamed when all of it was there.
    """
    saves: dict[tuple[int, int], list[ProvenFile]] = defaultdict(list)
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
    reason = "ranks wrote their files of this step at different times: they may be of two launches"
    return {
        one.file.path: Uncertain(one.file.path, one.global_step, reason)
        for files in spread
        if not are_near([one.file.mtime_ns for one in files], [times[_line(one)] for one in files])
        for one in files
    }


def _line(one: ProvenFile) -> tuple[str, str, int]:
    return one.file.kind.value, one.file.family, one.rank


def _is_copied_rank_by_rank(saves: Iterable[Sequence[ProvenFile]]) -> bool:
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


def _without_lag(groups: Sequence[Group], lengths: Mapping[str, int | None]) -> list[list[Verdict]] | None:
    """What is known of every launch's steps if each is an update; None if a launch shows that some are not.

    A launch that seems to have begun in the middle of an epoch must have something to have begun from, or its updates
    may have been skipped: a file with that counter, unless one that is there may have replaced it.
    """
    readings = [without_lag(each.files, lengths[each.key]) for each in groups]
    lags = (shows_lag(each.files, lengths[each.key], read) for each, read in zip(groups, readings, strict=True))
    if any(lags) or len(set(lengths.values())) > 1:
        return None
    replaced = any(_may_replace(ranked.file) for each in groups for ranked in each.files)
    holders: dict[int | None, set[str]] = defaultdict(set)
    for each in groups:
        for ranked in each.files:
            holders[ranked.file.optimizer_step].add(each.key)
    verdicts = []
    for each, reading in zip(groups, readings, strict=True):
        starts = possible_starts(each.files, reading)
        if starts is None or replaced or any(holders[step] - {each.key} for step in starts if step in holders):
            verdicts.append([exact(file, reading) for file in each.files])
        else:
            reason = "its launch seems to have begun in the middle of an epoch, from a step of which no file is there"
            verdicts.append([Uncertain(file.file.path, file.file.optimizer_step, reason) for file in each.files])
    return verdicts


def _may_replace(file: FoundFile) -> bool:
    """Whether a file may have been written over one of an earlier launch (mindspore.md §5, §7)."""
    if file.kind is Kind.TTP:
        return bool(unfinished_ttp_directory(file.path))
    return file.kind is Kind.GRACEFUL_EXIT and file.named_step is None


def _first(groups: Sequence[Group], world_size: int, lengths: Mapping[str, int | None]) -> Group | None:
    """The launch that began the run, if it is known: no other file can be of an earlier one.

    Every rank has files, and this launch's have no number. Every other file is of a launch that the numbers prove to be
    later, or has a counter beyond its first: what a launch starts from is not beyond what it saves. And no file can
    have taken the place of the one that it started from.
    """
    if len({file.rank for each in groups for file in each.files}) != world_size:
        return None
    by_counter = sorted(groups, key=lambda each: each.least_counter)
    for each in groups:
        periodic = [unit for unit in each.units if unit.line[0] == Kind.PERIODIC.value]
        counts = [file.file.optimizer_step for unit in periodic for file in unit.files]
        begin = min((count for count in counts if count is not None), default=None)
        if begin is None or any(unit.relaunch for unit in periodic) or _may_hide_a_start(each, groups, lengths):
            continue
        beyond = bisect_right(by_counter, begin, key=lambda other: other.least_counter)
        if all(other is each or each.is_before(other) for other in by_counter[:beyond]):
            return each
    return None


def _may_hide_a_start(launch: Group, groups: Iterable[Group], lengths: Mapping[str, int | None]) -> bool:
    """Whether a file may have replaced another that the launch started from.

    A graceful exit under MindSpore's fixed name may (mindspore.md §5), and one in a TTP directory, which is named after
    the step of the state that it held, unless that step is beyond the first epoch of which the launch has a file.
    """
    length = lengths[launch.key]
    epoch = min((file.epoch for file in launch.files if file.epoch is not None), default=None)
    reached = None if length is None or epoch is None else epoch * length
    for each in groups:
        for file in (ranked.file for ranked in each.files):
            if file.kind is Kind.GRACEFUL_EXIT and file.named_step is None:
                return True
            if file.kind is Kind.TTP and (reached is None or file.named_step is None or file.named_step < reached):
                return True
    return False


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


def _world_size(given: int | None, ranks: set[int], warnings: list[str]) -> int:
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
