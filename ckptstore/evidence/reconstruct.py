"""Reconstructs launches, steps and world size from unregistered files of a run.

Names and contents of such files can be wrong (mindspore.md §3). A file gets a step if every reading of its launch's
names and counters gives the same step. Otherwise it is uncertain, with a reason. Files that may be of different
launches are never put into one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core.groups import grouped
from ckptstore.core.model import Content, Grade, Kind
from ckptstore.core.text import count
from ckptstore.evidence.launch_groups import NEAR_NS, NEAR_PART, Group, Ranked, group
from ckptstore.evidence.unregistered import BY_HAND, OF_LENGTH, PlacedFile, Trusted, Uncertain
from ckptstore.evidence.witnesses import (
    Verdict,
    as_others,
    assumed,
    by_counter,
    may_lag,
    shortest_epoch,
    shows_lag,
    skipping,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ckptstore.evidence.unregistered import FoundFile


@dataclass(frozen=True)
class PlacedLaunch:
    """The files of one launch that have a step, by step, rank and path."""

    key: str  # stays the same when files of newer launches are added
    files: tuple[PlacedFile, ...]


@dataclass(frozen=True)
class Reconstruction:
    """The findings: launches, oldest first, uncertain files, and warnings."""

    launches: tuple[PlacedLaunch, ...] = ()
    uncertain: tuple[Uncertain, ...] = ()
    world_size: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stated:
    """Statements of the user about a tree."""

    steps_per_epoch: int | None = None  # of the dataset; None: by the files
    trusted: frozenset[Trusted] = frozenset()  # witnesses that are enough alone
    steps: Mapping[str, int] = field(default_factory=dict)  # of files, by path
    replicas: str | None = None  # the replica groups, as a resolution takes them; None: no replicas


NOTHING_STATED = Stated()


def reconstruct(
    found: Sequence[FoundFile],
    *,
    world_size: int | None = None,
    ranks_seen: Iterable[int] = (),
    stated: Stated = NOTHING_STATED,
) -> Reconstruction:
    """The launches, steps and world size of the files of one run, which are given in any order.

    `world_size` is stated by the user (None: by the highest rank that a name or a file states, with a warning);
    `ranks_seen` are ranks that have a directory, with files or without.
    """
    warnings: list[str] = []
    seen = set(ranks_seen)
    named = [file for file in found if rank_of(file) is not None]
    # A job of one rank has a directory `rank_0` only for graceful exits (mindspore.md §5).
    of_exits = named and all(file.kind is Kind.GRACEFUL_EXIT and rank_of(file) == 0 for file in named)
    unranked = seen <= {0} if of_exits else not seen and not named
    ranked: list[Ranked] = []
    weights: list[Ranked] = []
    uncertain: list[Uncertain] = []
    for file in found:
        rank = rank_of(file)
        if rank is None and (unranked or world_size == 1):
            rank = 0
        if rank is None:
            reason = "nothing says which rank wrote it"
            uncertain.append(Uncertain(file.path, None, reason, "--world-size 1"))
        elif reason := _of_another_rank(file, rank):
            uncertain.append(Uncertain(file.path, None, reason, "", contradicted=True))
        else:
            (weights if file.content is Content.WEIGHTS else ranked).append(Ranked(file, rank, *_claimed(file)))
    ranks = seen | {rank for file in found for rank in (file.rank, _inner_rank(file)) if rank is not None}
    size = size_of_job(world_size, ranks, warnings)

    trusts_numbers = Trusted.NUMBERS in stated.trusted
    groups, is_ordered = group(ranked, trusts_numbers=trusts_numbers)
    of_weights, _ = group(weights, trusts_numbers=trusts_numbers)  # they have no counters that tell launches apart
    if len(groups) > 1 and not is_ordered:
        warnings.append("times and names do not tell the order of all launches: it is a guess")
    if apart := _kept_apart(groups):
        warnings.append(
            f"it is not proven which files of several ranks are of one launch; they are kept apart: {apart}; "
            f"if no rank missed a launch: {Trusted.NUMBERS.remedy}"
        )
    launches: list[PlacedLaunch] = []
    # Launches of weights come first: as the newest ones, they would end the history before them.
    judged = [(each, _taken(each, own, stated)) for some in (of_weights, groups) for each, own in _judged(some, stated)]
    by_evidence = [
        [one for one in verdicts if isinstance(one, PlacedFile) and one.file.path not in stated.steps]
        for _, verdicts in judged
    ]
    mixed = {path: one for path, one in _mixed(by_evidence).items() if one.contradicted or not trusts_numbers}
    mixed = _under_another_prefix(by_evidence) | mixed
    for each, verdicts in judged:
        placed = [one for one in verdicts if isinstance(one, PlacedFile) and one.file.path not in mixed]
        uncertain += [one for one in verdicts if isinstance(one, Uncertain)]
        if placed:
            placed.sort(key=lambda one: (one.global_step, one.rank, one.file.path))
            launches.append(PlacedLaunch(each.key, tuple(placed)))
    uncertain = sorted([*uncertain, *mixed.values()], key=lambda one: one.path)
    return Reconstruction(tuple(launches), tuple(uncertain), size, tuple(warnings))


def _taken(launch: Group, verdicts: Iterable[Verdict], stated: Stated) -> list[Verdict]:
    """The verdicts on a launch's files, after the user's statements: steps, and witnesses that are enough alone."""
    taken: list[Verdict] = []
    for file, one in zip(launch.files, verdicts, strict=True):
        path = file.file.path
        if path in stated.steps:
            taken.append(PlacedFile(file.file, file.rank, stated.steps[path], Grade.ASSUMED, "its step was stated"))
        elif isinstance(one, PlacedFile) or one.contradicted:
            taken.append(one)
        elif (told := assumed(file, stated.steps_per_epoch, stated.trusted)) is not None:
            taken.append(PlacedFile(file.file, file.rank, told[0], Grade.ASSUMED, told[1]))
        else:
            taken.append(replace(one, remedy=_whole_remedy(one.remedy, file, stated.steps_per_epoch)))
    return taken


def _whole_remedy(remedy: str, file: Ranked, length: int | None) -> str:
    """The option that would place a file, with the length of an epoch if its name cannot be read without it."""
    if length is not None:
        return f"{remedy} {OF_LENGTH.replace('E', str(length))}"
    needs_length = remedy == Trusted.NAME.remedy and file.epoch != 1 and file.file.named_step is None
    return f"{remedy} {OF_LENGTH}" if needs_length else remedy


def _judged(groups: Sequence[Group], stated: Stated) -> list[tuple[Group, list[Verdict]]]:
    """Every launch, with a verdict on each of its files.

    If no file of the tree can lag behind its steps, the counter is the step. Otherwise neither the counter nor the name
    is a witness. They may agree by chance: if a launch began as many steps inside an epoch as updates were skipped.
    """
    files = [file for each in groups for file in each.files]
    length = stated.steps_per_epoch
    lags = may_lag(files) or any(shows_lag(each.files) for each in groups)
    if lags and Trusted.COUNTER not in stated.trusted:
        return [(each, [skipping(file, length) for file in each.files]) for each in groups]
    shortest = shortest_epoch(files)
    judged = []
    for place, each in enumerate(groups):
        verdicts = [by_counter(file, length, shortest, is_first=place == 0) for file in each.files]
        verdicts = as_others(each.files, verdicts)
        if lags:
            verdicts = [_less_sure(one, Grade.ASSUMED, "the optimizer's counter alone says so") for one in verdicts]
        elif each.by_times_alone:
            doubt = "only their times show that its files are of one save"
            verdicts = [_less_sure(one, Grade.CONSISTENT, doubt) for one in verdicts]
        judged.append((each, verdicts))
    return judged


def _less_sure(one: Verdict, grade: Grade, doubt: str) -> Verdict:
    return one if isinstance(one, Uncertain) else replace(one, grade=grade, doubt=doubt)


class _Written(NamedTuple):
    """When a file was written, in nanoseconds since 1970, the place of its launch among all, and its step."""

    at: int
    launch: int
    step: int

    def until(self, later: _Written) -> int:
        """The time to a later save; 0 if the steps show that this one is of an earlier start under the same names."""
        return 0 if self.launch == later.launch and self.step > later.step else later.at - self.at


class _Line:
    """The saves of a line in the order of their times, and the times between them, in nanoseconds."""

    def __init__(self, saves: Iterable[_Written]) -> None:
        self.saves = sorted(saves)
        self._gaps = [one.until(later) for one, later in pairwise(self.saves)]
        self._usual = [sorted(self._gaps)[(len(self._gaps) - 1) // 2]] if self._gaps else []

    def intervals(self, one: _Written) -> list[int]:
        """The times to the saves before and after, and the usual one; empty for a line with a single save.

        The usual one is the median: a pause before a later start is longer, and is no time between two saves.
        """
        place = bisect_left(self.saves, one)
        return [*self._gaps[max(place - 1, 0) : place + 1], *self._usual]


def _are_together(times: Collection[int]) -> bool:
    """Whether files were written within a time in which no other start gets to a save."""
    return max(times) - min(times) <= NEAR_NS


def _are_near(files: Sequence[_Written], lines: Iterable[_Line], interval: int) -> bool:
    """Whether files that were written at different times can be of one save.

    Another start needs about as long as the first one to reach the step. `interval` is the time between two saves, for
    lines with a single one.
    """
    intervals = [each for one, line in zip(files, lines, strict=True) for each in line.intervals(one) or [interval]]
    return max(files).at - min(files).at <= max(NEAR_NS, min(intervals) // NEAR_PART)


def _mixed(launches: Iterable[Iterable[PlacedFile]]) -> dict[str, Uncertain]:
    """Files of one step of a launch that its ranks did not write at one time: some may be of an earlier start.

    MindSpore does not number names that users make (`directory` or `prefix` is a callable). A later start then writes
    over files of an earlier one, and a rank that did not get as far still has its old file. TTP directories are left
    out: each was renamed when all its files were there.
    """
    saves: dict[tuple[int, int], list[PlacedFile]] = defaultdict(list)
    for place, files in enumerate(launches):
        for one in files:
            if one.file.kind is not Kind.TTP:
                saves[place, one.global_step].append(one)
    shared = {at: files for at, files in saves.items() if len({one.rank for one in files}) > 1}
    spread = [files for files in shared.values() if not _are_together([one.file.mtime_ns for one in files])]
    seems_copied = bool(spread) and _seems_copied_rank_by_rank(shared.values())
    # If the time from one launch to the next is the same on all ranks too, that is no coincidence: it is a copy.
    if not spread or (seems_copied and len({place for place, _ in shared}) > 1):
        return {}
    written = {
        one.file.path: _Written(one.file.mtime_ns, place, step)
        for (place, step), files in saves.items()
        for one in files
    }
    of_lines = grouped((_line(one), written[one.file.path]) for files in saves.values() for one in files)
    lines = {key: _Line(some) for key, some in of_lines.items()}
    # For a line with one save, the other saves of its rank bound the interval: each save may have a new name.
    of_ranks: dict[int, list[int]] = defaultdict(list)
    for (_, _, rank), line in lines.items():
        of_ranks[rank] += [each.at for each in line.saves]
    interval = min((after - at for each in of_ranks.values() for at, after in pairwise(sorted(each))), default=0)
    mixed: dict[str, Uncertain] = {}
    reason = "ranks wrote their files of this step at different times: they may be of two launches"
    reason += ", or copied one rank after another" if seems_copied else ""
    for place, step in (each for each, files in saves.items() if files in spread):
        files = saves[place, step]
        if _are_near([written[one.file.path] for one in files], [lines[_line(one)] for one in files], interval):
            continue
        is_contradicted = not seems_copied and _interleave(
            step, {at: some for (launch, at), some in saves.items() if launch == place}
        )
        remedy = BY_HAND if is_contradicted else Trusted.NUMBERS.remedy
        mixed |= {
            one.file.path: Uncertain(one.file.path, one.global_step, reason, remedy, contradicted=is_contradicted)
            for one in files
        }
    return mixed


def _under_another_prefix(launches: Iterable[Iterable[PlacedFile]]) -> dict[str, Uncertain]:
    """Files of a step that some ranks have under a prefix, and other ranks, which also use it, under another one only.

    Two trainings that save into one directory at one time look like one training with two callbacks. Their files of one
    step would be taken for one state. Directories do not count: some files of a save may be left of a copy only.
    """
    reason = "some ranks have a file of this step under another prefix only: they may be of two trainings"
    found: dict[str, Uncertain] = {}
    for files in launches:
        users: dict[str, set[int]] = defaultdict(set)
        steps: dict[int, dict[str, list[PlacedFile]]] = defaultdict(lambda: defaultdict(list))
        for one in files:
            if one.file.kind is Kind.PERIODIC and one.file.content is not Content.WEIGHTS:
                prefix = one.file.family.rpartition("/")[2]
                users[prefix].add(one.rank)
                steps[one.global_step][prefix].append(one)
        for step, prefixes in steps.items():
            ranks = {one.rank for some in prefixes.values() for one in some}
            for prefix, some in prefixes.items():
                lacking = ranks - {one.rank for one in some}
                if lacking and ranks <= users[prefix]:
                    found |= {one.file.path: Uncertain(one.file.path, step, reason) for one in some}
    return found


def _interleave(step: int, saves: Mapping[int, Sequence[PlacedFile]]) -> bool:
    """Whether a launch wrote a file of a step after one of a later step, or before one of an earlier step."""
    times = {at: [one.file.mtime_ns for one in files] for at, files in saves.items()}
    return any(max(times[min(at, step)]) > min(times[max(at, step)]) for at in times if at != step)


def _line(one: PlacedFile) -> tuple[str, str, int]:
    return one.file.kind.value, one.file.family, one.rank


def _seems_copied_rank_by_rank(saves: Iterable[Sequence[PlacedFile]]) -> bool:
    """Whether the ranks may have been copied one after another: all times of a rank are shifted by the same amount.

    The times of two launches that were equally fast look like that too, if each rank has the files of another launch.
    """
    shifts: dict[int, list[int]] = defaultdict(list)
    times: dict[int, list[int]] = defaultdict(list)
    for files in saves:
        first = min(files, key=lambda one: (one.rank, one.file.mtime_ns))
        for one in files:
            shifts[one.rank].append(one.file.mtime_ns - first.file.mtime_ns)
            times[one.rank].append(one.file.mtime_ns)
    spans = sorted((min(each), max(each)) for each in times.values())
    alike = all(len(each) > 1 and _are_together(each) for each in shifts.values())
    return alike and all(one[1] < other[0] for one, other in pairwise(spans))


def _claimed(file: FoundFile) -> tuple[int | None, int | None]:
    """The epoch and the step in it, by the name; for a graceful exit, by the values that MindSpore put into its file.

    MindSpore: `_do_step_end` in `train/callback/_on_request_exit.py`.
    """
    if file.epoch is None and file.kind is Kind.GRACEFUL_EXIT:
        epoch, step, length = (whole_number(file.info.get(name)) for name in ("epoch_num", "step_num", "batch_num"))
        if epoch and step and length and min(step, length) > 0:
            return epoch, (step - 1) % length + 1
    return file.epoch, file.step_in_epoch


def _inner_rank(file: FoundFile) -> int | None:
    return whole_number(file.info.get("cur_rank"))


def _of_another_rank(file: FoundFile, rank: int) -> str:
    """Why a file is not certainly of the rank that its path states; empty if nothing contradicts that."""
    if file.rank_in_name not in (None, rank):
        return f"its directory is of rank {rank}, its name of rank {file.rank_in_name}"
    inner = _inner_rank(file)
    return "" if inner in (None, rank) else f"its path is of rank {rank}, its content of rank {inner}"


def rank_of(file: FoundFile) -> int | None:
    """The rank that wrote a file, by its path, or else by its content; None if neither names one."""
    return _inner_rank(file) if file.rank is None else file.rank


def size_of_job(given: int | None, ranks: set[int], warnings: list[str]) -> int:
    """The number of ranks of a job, stated by its user, or else by the highest rank in a name, with a warning."""
    inferred = max(ranks, default=0) + 1
    if given is None:
        why = f"the highest rank found is {inferred - 1}" if ranks else "no file or directory names a rank"
        warnings.append(
            f"{why}: taken to be a job of {count(inferred, 'rank', 'ranks')}; if it had more, say so with --world-size"
        )
        return inferred
    if given < inferred:
        warnings.append(f"rank {inferred - 1} was found, though --world-size says {given}")
    return given


def _kept_apart(groups: Iterable[Group]) -> str:
    """The families whose files of several ranks could not be put into launches."""
    alone: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for each in groups:
        if len({ranked.rank for ranked in each.files}) == 1:
            for ranked in each.files:
                alone[ranked.file.kind.value, ranked.file.family, ranked.file.relaunch].add(ranked.rank)
    return ", ".join(sorted({f"{family} ({kind})" for (kind, family, _), ranks in alone.items() if len(ranks) > 1}))
