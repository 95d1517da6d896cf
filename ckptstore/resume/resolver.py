"""Decides which state a run continues from: the newest candidate in which every rank gets a proven file.

- `resolve` walks the candidates, newest first, and stops at the first that `judge` accepts.
- `judge` first rejects states for reasons that no file could change (`_unfit`, `_refuse_world_size`).
- Then `_cover` alone gives each rank a file: its own, or that of a rank that the layout proves to hold the same. A file
  is given only if `fault` finds none.
- If files are lost, the state is judged once more with its copies in tiers, which a rank can fetch.

Nothing here looks at the disk: the caller passes the candidates, the observations of their files, and their copies.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from operator import attrgetter
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core import iterations, validate
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.model import (
    Assignment,
    Checkpoint,
    Content,
    FileState,
    Kind,
    Observed,
    Reason,
    Rejection,
    Resolution,
    RestorePlan,
    Rule,
    State,
    View,
)
from ckptstore.core.naming import FOREIGN, unfinished_ttp_directory
from ckptstore.core.replicas import show
from ckptstore.core.sighting import Sighting, compare
from ckptstore.core.text import count
from ckptstore.errors import UsageError
from ckptstore.evidence.witnesses import other_epochs
from ckptstore.resume import remedies

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from ckptstore.core.copies import Copy
    from ckptstore.core.model import Launch
    from ckptstore.core.reference import Best

    Look = Callable[[State], Mapping[str, Observed]]
    Hosts = Callable[[Launch], Mapping[int, str]]
    Copies = Callable[[State], Mapping[str, tuple[Copy, ...]]]

_EXPLAINED = 8  # of the ranks that see no file, at most so many are explained
_RANKS_SHOWN = 8
_APPENDED_BYTES = 1024  # more than OnRequestExit appends: five numbers with their names
_NOT_THERE = Observed(None)
_GLOB = frozenset("*?[\\")

_KIND_ORDER = {kind: index for index, kind in enumerate(Kind)}

UNTRAINED = Reason(Rule.UNTRAINED, None, "no step had been done: the network is untrained")
NOT_LINEAGE = Reason(Rule.NOT_LINEAGE, None, "the run went back to an older state, and went on from that")


def is_beside(rejection: Rejection) -> bool:
    """Whether a state was rejected only because it is of another history."""
    return all(reason.rule is Rule.NOT_LINEAGE for reason in rejection.reasons)


class Loads(Enum):
    """The kinds of state that the asking program can load."""

    ALL = "all"  # it hands the files on
    MINDSPORE = "MindSpore"  # files of MindSpore
    MINDFORMERS = "MindFormers"  # directories of iterations


@dataclass(frozen=True, kw_only=True)
class Query:
    """The question for a state of a run: the newest complete one of its lineage, unless one is named."""

    step: int | None = None  # that step only
    best: Best | None = None  # the best by a metric first, instead of the newest
    lineage: str | None = None  # the lineage of the launch with this id instead of the newest launch's
    every_lineage: bool = False  # the states of all launches, abandoned ones too, the highest step first
    world_size: int | None = None  # how many ranks will load it; None: as many as saved it
    takes_whole: bool = True  # each of them takes a file of the whole state
    read_bytes: bool = False  # check every file's digest too
    take_quarantined: bool = False  # take a state that was found to be bad
    loads: Loads = Loads.ALL
    fresh: bool = False  # take no state, and abandon the existing ones
    initial: str | None = None  # a reference to a state of another run, to begin from if this run has none
    # Who is whose replica in launches of as many ranks as the newest one with a state that is asked for: "dp", "none",
    # groups as in "0,4;1,5", or the path of a strategy, group info or JSON file. None: the layout that each recorded.
    replicas: str | None = None
    steps_per_epoch: int | None = None  # of the dataset; a scanned state must fit it, unless its step is named
    views: Mapping[int, View] | None = None  # what each rank sees of the files; None: all see what this process does
    fetches: bool = False  # a rank may fetch a file that only a tier has

    @property
    def goes_back(self) -> bool:
        """Whether a launch that starts there abandons the states after it."""
        return self.fresh or self.step is not None or self.best is not None or self.lineage is not None

    def checked(self) -> Query:
        """The query with its numbers converted. Raises `UsageError` for invalid values."""
        if self.lineage is not None and self.every_lineage:
            raise UsageError("one lineage and all of them are asked for", "give --lineage or --all")
        if self.fresh and (self.step is not None or self.lineage is not None):
            raise UsageError("a fresh start and an older state are asked for", "give one of them")
        fresh = validate.switch("fresh", self.fresh)
        take_quarantined = validate.switch("take_quarantined", self.take_quarantined)
        step = None if self.step is None else validate.step_of(self.step)
        world_size = None if self.world_size is None else validate.ranks("world size", self.world_size)
        return replace(self, step=step, world_size=world_size, fresh=fresh, take_quarantined=take_quarantined)


NEWEST = Query()


def resolve(  # noqa: PLR0917 — questions, in the order in which they are asked
    run: str,
    candidates: Iterable[State],
    look: Look,
    query: Query = NEWEST,
    hosts: Hosts = lambda _: {},
    copies: Copies = lambda _: {},
    *,
    compares: bool = False,
) -> Resolution:
    """The restore plan of the first complete candidate, and the reasons against each one before it.

    `candidates` come newest first. `look` returns the observations of a candidate's files by path, and is called only
    until a plan is found. `hosts` returns the hosts of a launch's ranks, and is called only if a replica stands in.
    `copies` returns a candidate's copies in tiers by file id, and is called only if a file is lacking without them.
    If the plan needs some and the caller `compares`, the next candidate that needs none is `without_fetching`.
    """
    rejections: list[Rejection] = []
    remaining = iter(candidates)
    for state in remaining:
        seen = look(state)
        verdict = judge(state, seen, query, hosts)
        if isinstance(verdict, Rejection) and query.fetches and state.launch.has_copies and (found := copies(state)):
            verdict = judge(replace(state, copies=found), seen, query, hosts)
        if isinstance(verdict, RestorePlan):
            is_compared = compares and bool(verdict.copies)
            at_home = resolve(run, remaining, look, replace(query, fetches=False), hosts).plan if is_compared else None
            return Resolution(run, verdict, tuple(rejections), without_fetching=at_home)
        rejections.append(verdict)
    return Resolution(run, None, tuple(rejections))


def judge(
    state: State, seen: Mapping[str, Observed], query: Query = NEWEST, hosts: Hosts = lambda _: {}
) -> RestorePlan | Rejection:
    """A plan for every rank, or every reason why there is none.

    Files with the complete state come first, and replicas may stand in for each other; else shares, of which every rank
    must have its own.
    """
    unfit = _unfit(state, query)
    if unfit:
        return _reject(state, unfit)
    failed = {} if query.take_quarantined else state.failed
    parts = grouped((file.path.rpartition("/")[0], file) for file in state.files if file.content is Content.PART)
    if parts:
        verdicts = [_judge_parts(replace(state, files=tuple(some)), seen, query, failed) for some in parts.values()]
        return min(verdicts, key=lambda one: len(one.reasons) if isinstance(one, Rejection) else 0)
    saved_world = state.launch.world_size
    ranks = range(query.world_size or saved_world)
    has_whole = any(file.content is not Content.SHARE for file in state.files)
    if len(ranks) != saved_world and not (query.takes_whole and state.launch.any_file_serves and has_whole):
        return _refuse_world_size(state, seen, query, failed)
    sight = _Sight(seen, query.views, failed, state.copies)
    shares = [file for file in state.files if file.content is Content.SHARE]
    others = [file for file in state.files if file.content is not Content.SHARE] if shares else state.files
    covers = []
    if others or not shares:
        covers.append(_cover(state.launch, others, ranks, sight, hosts))
    if shares and len(ranks) == saved_world and all(cover.reasons for cover in covers):
        covers.append(_cover(state.launch, shares, ranks, sight, hosts))
    best = next((cover for cover in covers if not cover.reasons), None)
    if best is not None:
        copies = {file: state.copies[file] for file in best.fetched}
        return RestorePlan(launch=state.launch, global_step=state.global_step, ranks=best.in_order(), copies=copies)
    return _reject(state, [reason for cover in covers for reason in cover.reasons], covers)


def _unfit(state: State, query: Query) -> list[Reason]:
    """Reasons to reject a state that do not depend on the disk.

    A quarantine holds for all ranks: the fault of one rank has reached the others' weights.
    """
    launch = state.launch
    if state.global_step == 0:
        return [UNTRAINED]
    bad = sorted([file for file in state.files if file.quarantine], key=lambda file: (file.rank, file.path))
    quarantined = [Reason(Rule.QUARANTINED, file.rank, f"{file.path}: {file.quarantine}") for file in bad]
    if launch.foreign:
        return [_in_parts(state), *quarantined]
    reasons = [] if query.take_quarantined else quarantined
    as_saved = query.world_size in (None, launch.world_size)
    misfit = other_epochs(state, query.steps_per_epoch) if as_saved and query.step is None else ""
    if misfit:
        reasons.insert(0, Reason(Rule.OTHER_EPOCHS, None, misfit))
    if foreign := _not_for(query.loads, state):
        reasons.insert(0, Reason(Rule.FOREIGN_FORMAT, None, foreign))
    return reasons


def _not_for(loads: Loads, state: State) -> str:
    """Why the asking program cannot load a state; empty if it can."""
    if loads is Loads.MINDFORMERS:
        single = next((file for file in state.files if file.content is not Content.PART), None)
        return f"with use_legacy_format: False MindFormers cannot load {single.path}" if single else ""
    foreign = next((file for file in state.files if file.format in FOREIGN or file.content is Content.PART), None)
    if loads is Loads.ALL or foreign is None:
        return ""
    if foreign.content is Content.PART:
        return f"MindFormers alone loads {foreign.path}, with use_legacy_format: False"
    return f"MindSpore cannot load {foreign.path}: its format is {foreign.format}"


def _judge_parts(
    state: State, seen: Mapping[str, Observed], query: Query, failed: Mapping[str, str]
) -> RestorePlan | Rejection:
    """A plan with the model file of each rank, if every file of the iteration is there; no file replaces another.

    `state` has the files of one directory: MindFormers loads the whole directory, and all ranks must see it. Each file
    is judged as its own rank sees it.
    """
    launch = state.launch
    parts = {file.path.rpartition("/")[2]: file for file in state.files}
    reasons, ways = [], []
    if query.world_size not in (None, launch.world_size):
        saved_by = count(launch.world_size, "rank", "ranks")
        detail = f"saved by {saved_by}, to be loaded by {query.world_size}: an iteration is loaded by as many ranks"
        reasons.append(Reason(Rule.WORLD_SIZE, None, detail))
        ways.append(f"start with {saved_by}")
    notes = (iterations.COMMON,) if launch.world_size == 1 else (iterations.COMMON, iterations.METADATA)
    for name in (*iterations.lacking(parts), *(name for name in notes if name not in parts)):
        part = iterations.parse_part(name)
        reasons.append(
            Reason(Rule.MISSING_RANK, part.index if part else 0, f"{name} of the iteration was not recorded")
        )
    faults: dict[str, Reason] = {}
    for file in sorted(parts.values(), key=lambda file: (file.rank, file.path)):
        shown = seen if query.views is None else query.views.get(file.rank, View("", {})).seen
        if found := fault(file, shown.get(file.path), failed):
            faults[file.id] = found
    named = [part for name in sorted(parts) if (part := iterations.parse_part(name)) is not None]
    absent = {iterations.MODEL, iterations.OPTIMIZER}.difference(part.holds for part in named)
    reasons += [Reason(Rule.MISSING_RANK, None, f"no part of {holds} was recorded") for holds in sorted(absent)]
    own = {part.index: parts[str(part)] for part in named if part.holds == iterations.MODEL}
    if reasons or faults:
        broken = sorted({reason.rank or 0 for reason in faults.values()})
        if faults:
            ways.append(remedies.of_ranks(broken, broken, list(parts.values()), faults, in_shares=True))
        return replace(_reject(state, [*reasons, *faults.values()]), remedies=tuple(filter(None, ways)))
    plan = tuple(Assignment(rank, own.get(rank, own[min(own)])) for rank in range(launch.world_size))
    return RestorePlan(launch=launch, global_step=state.global_step, ranks=plan)


def _in_parts(state: State) -> Reason:
    there = {file.rank for file in state.files if file.state is FileState.COMPLETE}
    gone = state.launch.world_size - len(there)
    lost = f", of which those of {gone} of {state.launch.world_size} are not there" if gone > 0 else ""
    first = min((file.path for file in state.files), default="nothing any more")
    detail = f"it is in files of MindFormers 2.0, as {first}{lost}: MindFormers has to load it"
    return Reason(Rule.FOREIGN_FORMAT, None, detail)


def _refuse_world_size(
    state: State, seen: Mapping[str, Observed], query: Query, failed: Mapping[str, str]
) -> Rejection:
    """Why another number of ranks cannot load the state, and its faults for the ranks that saved it.

    The conversion tool reads the file of every rank, and would read weights from a truncated one too. So the hint names
    it only if each rank has a complete file of its own.
    """
    launch = state.launch
    if all(file.content is Content.SHARE for file in state.files):
        what = "each file is a share of the state"
    elif launch.any_file_serves:
        what = "the new ranks do not hold the whole state, as those did"
    else:
        what = f"no file serves every rank (layout: {launch.layout.source})"
    saved_by = count(launch.world_size, "rank", "ranks")
    reason = Reason(Rule.WORLD_SIZE, None, f"{saved_by} saved it, {query.world_size} are to load it, and {what}")
    if query.views is not None:  # each rank that asks has looked at some of the files
        seen = {path: each for view in query.views.values() for path, each in view.seen.items()}
    as_saved = judge(state, seen, Query(take_quarantined=query.take_quarantined))
    if isinstance(as_saved, Rejection):
        return replace(as_saved, reasons=(reason, *as_saved.reasons))
    files = [file for file in state.files if file.content is not Content.WEIGHTS]
    is_sound = not any(fault(file, seen.get(file.path), failed) for file in files)
    each_own = all(rank == source.rank for rank, source in as_saved.ranks)
    remedy = remedies.how_to_convert(state) if is_sound and each_own else remedies.as_many_ranks(state)
    return replace(_reject(state, [reason]), remedies=(remedy,))


@dataclass(frozen=True)
class _Part:
    """Ranks that saved the same part of a state, and the ranks that need a file of it."""

    ranks: tuple[int, ...]
    found: Sequence[Checkpoint]
    asking: tuple[int, ...]
    in_shares: bool = False  # all ranks in one part, in which none stands in for another (mindspore.md §8)

    @cached_property
    def files(self) -> list[Checkpoint]:
        """The files by rank, those of one rank in order of preference."""
        return sorted(self.found, key=lambda file: (file.rank, *_preference(file)))

    @cached_property
    def unequal(self) -> str:
        """How the files of replicas differ, which they should not: then no file may replace another."""
        return unequal_sizes(self.files)

    @property
    def stands_in(self) -> bool:
        """Whether a rank may be given the file of another one."""
        return not self.in_shares and not self.unequal


class _Sight(NamedTuple):
    """The files that ranks see, the same for all or by rank; the loads that failed; the copies in tiers."""

    seen: Mapping[str, Observed]
    views: Mapping[int, View] | None
    failed: Mapping[str, str]
    copies: Mapping[str, tuple[Copy, ...]]

    def faults(self, files: Iterable[Checkpoint], seen: Mapping[str, Observed] | None = None) -> dict[str, Reason]:
        """The fault of each file that cannot be loaded, by its id, as this process or a rank sees it."""
        shown, copies = self.seen if seen is None else seen, self.copies
        return {
            file.id: found
            for file in files
            if (found := fault(file, shown.get(file.path), self.failed, copies)) is not None
        }

    def sees(self, view: View, file: Checkpoint) -> bool:
        """Whether a rank sees a file that matches its record."""
        return file.path in view.seen and fault(file, view.seen[file.path], self.failed) is None

    def is_in_a_tier(self, file: Checkpoint) -> bool:
        """Whether a rank that does not see a file can fetch it from a tier."""
        return file.id in self.copies and fault(file, None, self.failed, self.copies) is None

    def far(self, files: Iterable[Checkpoint]) -> set[str]:
        """The ids of the files that must be fetched."""
        copied = [file for file in files if file.id in self.copies] if self.copies else ()
        return {file.id for file in copied if fault(file, self.seen.get(file.path), self.failed) is not None}


@dataclass
class _Cover:
    """The result of `_cover`: a file for each rank, or the reasons why not and the remedies; the files to fetch."""

    served: list[Assignment] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    fetched: set[str] = field(default_factory=set)

    def in_order(self) -> tuple[Assignment, ...]:
        """The assignments by rank."""
        return tuple(sorted(self.served, key=attrgetter("rank")))


def _parts(launch: Launch, files: Sequence[Checkpoint], ranks: range) -> list[_Part]:
    """The replica groups that saved the state, each with its files. A job of another size needs the only group."""
    if files and files[0].content is Content.SHARE:
        return [_Part(tuple(ranks), files, tuple(ranks), in_shares=True)]
    of_rank = grouped((file.rank, file) for file in files)
    parts = []
    for group in launch.layout.partition(launch.world_size):
        own = [file for rank in group for file in of_rank.get(rank, ())]
        parts.append(_Part(group, own, group if len(ranks) == launch.world_size else tuple(ranks)))
    return parts


def _cover(launch: Launch, files: Sequence[Checkpoint], ranks: range, sight: _Sight, hosts: Hosts) -> _Cover:
    """Give each rank its own file, else a file of a replica; collect the reasons for each rank without one."""
    cover = _Cover()
    if sight.views is not None:
        for part in _parts(launch, files, ranks):
            _serve_on_hosts(cover, part, sight, sight.views, reads_all=part.in_shares and launch.layout.any_world_size)
        return cover
    faults, far = sight.faults(files), sight.far(files)
    own = _best_of_each(files, faults, far)
    if len(ranks) == launch.world_size and all(rank in own for rank in ranks):  # nearly always
        return _Cover([Assignment(rank, own[rank]) for rank in ranks], fetched=_among(far, own.values()))
    unfinished = next((name for file in files if (name := unfinished_ttp_directory(file.path))), "")
    where = cache(lambda: hosts(launch))  # of all ranks: a layout may have thousands of replica groups
    for part in _parts(launch, files, ranks):
        there = {rank: own[rank] for rank in part.ranks if rank in own}
        lacking = [rank for rank in part.asking if rank not in there]
        cover.served += [Assignment(rank, there[rank]) for rank in part.asking if rank in there]
        if lacking and there and part.stands_in:
            cover.served += _stand_in(lacking, there, where())
        elif lacking:
            cover.reasons += _why_not(part, lacking, faults, unfinished)
            cover.remedies.append(remedies.of_ranks(lacking, part.ranks, part.files, faults, in_shares=part.in_shares))
    cover.fetched = _among(far, (each.source for each in cover.served))
    return cover


def _among(far: set[str], files: Iterable[Checkpoint]) -> set[str]:
    return far & {file.id for file in files} if far else far


def _best_of_each(
    files: Iterable[Checkpoint], faults: Mapping[str, Reason], far: Container[str]
) -> dict[int, Checkpoint]:
    """The preferred file without a fault of each rank; files that need no fetching come first."""
    chosen: dict[int, Checkpoint] = {}
    for file in files:
        if faults and file.id in faults:  # computing an id takes time
            continue
        if (other := chosen.setdefault(file.rank, file)) is file:
            continue
        one, two = ((bool(far) and each.id in far, *_preference(each)) for each in (file, other))
        if one < two:
            chosen[file.rank] = file
    return chosen


def _stand_in(ranks: Iterable[int], own: Mapping[int, Checkpoint], hosts: Mapping[int, str]) -> list[Assignment]:
    """Give each rank a file written on its own host, else on any host; of several, the file of the lowest rank."""
    lowest = own[min(own)]
    nearest = {hosts[rank]: own[rank] for rank in sorted(own, reverse=True) if rank in hosts}
    return [Assignment(rank, nearest.get(hosts.get(rank, ""), lowest)) for rank in ranks]


def _why_not(part: _Part, lacking: Sequence[int], faults: Mapping[str, Reason], unfinished: str) -> list[Reason]:
    """The faults of the files that could have served the ranks, and the ranks that no file serves."""
    would_serve = [file for file in part.files if not part.in_shares or file.rank in lacking]
    reasons = [faults[file.id] for file in would_serve if file.id in faults]
    explained = {reason.rank for reason in reasons}
    others = f", nor one of its replica group {show(part.ranks)}," if len(part.ranks) > 1 else ""
    left = f"; {unfinished} is of an unfinished TTP save, and its files do not cover the rank" if unfinished else ""
    for rank in lacking:
        if part.unequal:
            why = "the files of the replicas differ in size, so none replaces it"
            detail = f"it has no file of its own, and {why}: {part.unequal}"
            reasons.append(Reason(Rule.REPLICA_SIZE_MISMATCH, rank, detail))
        elif rank not in explained:
            detail = f"no file of rank {rank}{others} {'can be used' if reasons else 'was recorded'}{left}"
            if part.in_shares:
                detail = f"the share of rank {rank} was not recorded, and no other file holds it (remove_redundancy)"
            reasons.append(Reason(Rule.MISSING_RANK, rank, detail))
    return reasons


def _serve_on_hosts(cover: _Cover, part: _Part, sight: _Sight, views: Mapping[int, View], *, reads_all: bool) -> None:
    """Give each rank a file that its own host has, else one from a tier.

    `reads_all`: each rank loads the shares of all ranks (§8).
    """
    of_rank: dict[int, dict[str, Checkpoint]] = defaultdict(dict)
    of_all = {file.path: file for file in part.files}
    for file in part.files:
        of_rank[file.rank][file.path] = file
    for rank in part.asking:
        serving = of_all if part.stands_in else of_rank[rank]
        chosen: Checkpoint | None = None
        if rank in views:
            view = views[rank]
            there = [serving[path] for path in view.seen if path in serving and sight.sees(view, serving[path])]
            there = there or list(filter(sight.is_in_a_tier, serving.values()))
            chosen = min(there, key=lambda file: (file.rank != rank, file.rank, *_preference(file)), default=None)
            needed = part.files if reads_all else [chosen] if chosen is not None else []
            far = [file for file in needed if not sight.sees(view, file)]
            hidden = next((file for file in far if not sight.is_in_a_tier(file)), None)
            if chosen is not None and hidden is not None:
                chosen, serving = None, {hidden.path: hidden}
        if chosen is not None:
            cover.served.append(Assignment(rank, chosen))
            cover.fetched.update(file.id for file in far)
        elif len(cover.reasons) < _EXPLAINED:
            reason, faults = _unseen(rank, serving, sight, views)
            cover.reasons.append(reason)
            if faults:
                cover.remedies.append(
                    remedies.of_ranks([rank], part.ranks, part.files, faults, in_shares=part.in_shares)
                )


def _unseen(
    rank: int, serving: Mapping[str, Checkpoint], sight: _Sight, views: Mapping[int, View]
) -> tuple[Reason, dict[str, Reason]]:
    """Why a rank gets no file: another host has it, and how to copy it; else the faults of the files that it sees."""
    if rank not in views:
        return Reason(Rule.MISSING_FILE, rank, f"rank {rank} did not say in time what it sees on its host"), {}
    host, seen = views[rank]
    for view in views.values():
        there = next((file for file in serving.values() if sight.sees(view, file)), None)
        if there is not None and view.host != host:
            detail = f"rank {rank} on {host} lacks {there.path}, which {view.host} has; on {host}: "
            detail += _copy_from(view.host, there.path)
            return Reason(Rule.MISSING_FILE, rank, detail), {}
    faults = sight.faults([file for path, file in serving.items() if path in seen], seen)
    if faults:
        return next(iter(faults.values())), faults
    named = next(iter(serving), "a file that serves it")
    return Reason(Rule.MISSING_FILE, rank, f"rank {rank} on {host} does not see {named}"), {}


def _copy_from(host: str, path: str) -> str:
    """The command that copies a checkpoint from a host, and its companion if it has one."""
    folder, _, name = path.rpartition("/")
    stem = name.rpartition(".")[0]
    if not stem or _GLOB.intersection(path):  # it has no companion, or a pattern would not name it
        return f"rsync -a --mkpath {quote(f'{host}:{path}')} {quote(path)}"
    return f"rsync -a --mkpath {quote(f'{host}:{folder}/{stem}.*')} {quote(f'{folder}/')}"


def _preference(file: Checkpoint) -> tuple[int, str]:
    """The sort key that chooses among several complete files of one rank, independent of the input's order."""
    return _KIND_ORDER[file.kind], file.path


def _reject(state: State, reasons: Sequence[Reason], covers: Sequence[_Cover] = ()) -> Rejection:
    finished = [file for file in state.files if file.size is not None]
    whole = {file.rank for file in finished if file.content is Content.FULL}
    world_size = state.launch.world_size
    in_pieces = any(
        len({file.rank for file in finished if file.content is content}) == world_size
        for content in (Content.SHARE, Content.PART)
    )
    was_whole = state.global_step > 0 and (in_pieces or state.launch.layout.covers(whole, world_size))
    of_state = [line for reason in reasons[:1] if (line := remedies.of_state(reason, state))]
    fullest = max(covers, key=lambda cover: len(cover.served), default=_Cover())
    return Rejection(
        launch=state.launch.id,
        global_step=state.global_step,
        kinds=state.kinds,
        reasons=tuple(reasons),
        was_whole=was_whole,
        world_size=world_size,
        served=fullest.in_order(),
        remedies=tuple(fullest.remedies or of_state),
    )


def fault(
    file: Checkpoint, seen: Observed | None, failed: Mapping[str, str], copied: Container[str] = ()
) -> Reason | None:
    """Why one file cannot be loaded; None if it is there as recorded, or is one of those `copied`.

    `copied` has the ids of files that a tier has with the recorded digest.
    """
    if failed and file.id in failed:  # computing an id takes time, so do it only if a load failed
        return Reason(Rule.QUARANTINED, file.rank, f"{file.path} could not be loaded: {failed[file.id]}")
    seen = seen or _NOT_THERE
    if file.content is Content.WEIGHTS:
        rule, what = Rule.WEIGHTS_ONLY, "holds weights without the optimizer's state"
    elif copied and file.id in copied:
        return None
    elif file.state is FileState.DAMAGED:
        rule = file.problem or Rule.QUARANTINED
        what = f"is damaged: bring back the original from a backup, then run: {Command('verify', file.run)}"
    elif file.state is FileState.TRASHED:
        undo = Command("undo", file.run)
        rule, what = Rule.MISSING_FILE, f"was removed by gc: {undo} brings it back while it is in the trash"
    elif file.size is None and not seen.unreadable:
        rule, what = Rule.IN_PROGRESS, "was never finished" if seen.size is None else "is being written"
    else:
        sighting = compare(file, seen)
        if sighting is Sighting.SAME:
            return None
        rule, what = _unlike(file, seen, sighting)
    if copied and rule is Rule.MISSING_FILE:
        what = f"{what}, and no tier has it"
    return Reason(rule, file.rank, f"{file.path} {what}")


def _unlike(file: Checkpoint, seen: Observed, sighting: Sighting) -> tuple[Rule, str]:
    """The rule that is broken by a file that differs from its record, and how."""
    if sighting is Sighting.CANNOT_LOOK:
        return Rule.UNREADABLE, f"cannot be looked at: {seen.unreadable}"
    if sighting is Sighting.GONE:
        scan = Command("scan", "NEW", "--run", file.run)
        away = f"is gone, and its directory is missing or empty: is it mounted? If it was moved to NEW: {scan}"
        return Rule.MISSING_FILE, "is gone" if seen.has_directory else away
    if seen.size != file.size:
        return Rule.SIZE_MISMATCH, f"has {seen.size} bytes, {file.size} were recorded"
    if sighting is Sighting.CHANGED:
        return Rule.DIGEST_MISMATCH, "was written again since it was recorded: scan its directory again"
    return Rule.DIGEST_MISMATCH, "has other bytes than those recorded"


def unequal_sizes(files: Iterable[Checkpoint]) -> str:
    """How many bytes each rank's files have, if the files of replicas differ in size; else empty.

    Replicas hold the same parameters: if their files of one kind and format differ in size, none stands in for another.
    Recorded sizes are compared, those of lost files too: losing a file must never prove more. A file that was cut
    before it was recorded is left out, as if it was never recorded. A rank may have several files, of several
    ModelCheckpoints.
    """
    sizes: dict[tuple[Kind, str], dict[int, set[int]]] = {}
    for file in files:
        if file.size is not None and file.content is Content.FULL and not _was_cut_before(file):
            sizes.setdefault((file.kind, file.format), {}).setdefault(file.rank, set()).add(file.size)
    for (kind, _), by_rank in sizes.items():
        if not _alike(kind, list(by_rank.values())):
            shown = [f"rank {rank} has {show(sorted(each))} bytes" for rank, each in by_rank.items()]
            return ", ".join(shown[:_RANKS_SHOWN])
    return ""


def _was_cut_before(file: Checkpoint) -> bool:
    """Whether a file was cut before its rank recorded it: every other registered file has a digest."""
    is_unreadable = file.state is FileState.DAMAGED and file.problem is Rule.UNREADABLE
    return is_unreadable and file.digest is None and file.grade is None


def _alike(kind: Kind, sizes: Sequence[set[int]]) -> bool:
    """Whether ranks whose files have these sizes may hold the same parameters.

    A rank that was asked to exit by a signal saves again without the appended entries, and its replicas keep theirs
    (mindspore.md §3). So a difference of those few bytes is allowed for graceful exits.
    """
    if all(each == sizes[0] for each in sizes):
        return True
    every = set().union(*sizes)
    return kind is Kind.GRACEFUL_EXIT and max(every) - min(every) <= _APPENDED_BYTES
