"""Which state does a run go on from? The newest of its lineage that is provably one whole state.

`resolve` walks the candidates, newest first, and stops at the first that `judge` accepts. Both only decide: the
caller brings the candidates and looks at the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from shlex import quote
from typing import TYPE_CHECKING

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
)
from ckptstore.core.naming import FOREIGN, unfinished_ttp_directory
from ckptstore.core.replicas import show
from ckptstore.core.text import count
from ckptstore.resume import remedies
from ckptstore.resume.faults import fault, unequal_sizes
from ckptstore.resume.position import other_epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ckptstore.core.model import Launch, View

    Look = Callable[[State], Mapping[str, Observed]]

_EXPLAINED = 8
"""Ranks that lack a file, of which each is explained: the others lack theirs for the same reasons."""

_KIND_ORDER = {kind: place for place, kind in enumerate(Kind)}

UNTRAINED = Reason(Rule.UNTRAINED, None, "no step had been done: the network is untrained")
NOT_LINEAGE = Reason(Rule.NOT_LINEAGE, None, "the run went back to an older state, and on from there")


def resolve(
    run: str,
    candidates: Iterable[State],
    look: Look,
    *,
    world_size: int | None = None,
    takes_whole: bool = True,
    take_quarantined: bool = False,
    takes_foreign: bool = True,
    steps_per_epoch: int | None = None,
    hosts: Callable[[Launch], Mapping[int, str]] | None = None,
) -> Resolution:
    """The first candidate that is whole, as a plan, and why each one before it is not.

    `candidates` come newest first; `look` tells what the disk shows of a candidate's files, by path, and is asked
    only until a plan is found. `world_size` is that of the launch that will load the plan (None: as it was saved),
    `takes_whole` whether each of its ranks holds the whole state, `takes_foreign` whether it loads what MindSpore
    cannot, `steps_per_epoch` that of its dataset. `hosts` tells where the ranks of a launch ran; it is asked only where
    a replica stands in.
    """
    rejections: list[Rejection] = []
    for state in candidates:
        judged = partial(
            judge,
            seen=look(state),
            world_size=world_size,
            takes_whole=takes_whole,
            take_quarantined=take_quarantined,
            takes_foreign=takes_foreign,
            steps_per_epoch=steps_per_epoch,
        )
        verdict = judged(state)
        if hosts is not None and isinstance(verdict, RestorePlan) and _has_stand_ins(verdict):
            verdict = judged(replace(state, hosts=hosts(state.launch)))
        if isinstance(verdict, RestorePlan):
            return Resolution(run, verdict, tuple(rejections))
        rejections.append(verdict)
    return Resolution(run, None, tuple(rejections))


def judge(
    state: State,
    seen: Mapping[str, Observed],
    *,
    world_size: int | None = None,
    takes_whole: bool = True,
    take_quarantined: bool = False,
    takes_foreign: bool = True,
    steps_per_epoch: int | None = None,
) -> RestorePlan | Rejection:
    """A plan for every rank, or every reason why there is none.

    Files of the whole state serve first, replicas standing in for each other; else shares, of which every rank must
    have its own. Parts of another tool's format never serve. A state is quarantined as a whole: what was wrong on one
    rank has reached the others' weights.
    """
    saved_world = state.launch.world_size
    ranks = range(saved_world if world_size is None else world_size)
    if state.global_step == 0:
        return _reject(state, [UNTRAINED])
    contents = {file.content for file in state.files}
    if Content.PART in contents:
        return reject_foreign(state)
    reasons = [] if takes_foreign else _foreign(state)
    misfit = other_epochs(state.launch, steps_per_epoch) if len(ranks) == saved_world else ""
    reasons += [Reason(Rule.OTHER_EPOCHS, None, misfit)] if misfit else []
    reasons += [] if take_quarantined else _quarantined(state)
    if reasons:
        return _reject(state, reasons)
    failed = {} if take_quarantined else state.failed
    if len(ranks) != saved_world and not _serves_any(state, takes_whole=takes_whole):
        as_saved = judge(replace(state, views=None), seen, take_quarantined=take_quarantined)
        return _reject_other_world(state, len(ranks), as_saved, seen, failed)

    covers = _covers(state, seen, failed, ranks) if state.views is None else _seen_covers(state, failed, ranks)
    best = next((cover for cover in covers if not cover.reasons), None)
    if best is not None:
        return RestorePlan(launch=state.launch, global_step=state.global_step, ranks=best.in_order())
    return _reject(state, [reason for cover in covers for reason in cover.reasons], covers)


def _covers(state: State, seen: Mapping[str, Observed], failed: Mapping[str, str], ranks: range) -> list[_Cover]:
    """How far files of the whole state serve the ranks, and if they do not, shares."""
    faults = {file.id: found for file in state.files if (found := fault(file, seen.get(file.path), failed)) is not None}
    shares = [file for file in state.files if file.content is Content.SHARE]
    others = [file for file in state.files if file.content is not Content.SHARE] if shares else state.files
    covers = []
    if others or not shares:
        covers.append(_from_whole_states(state, others, faults, ranks))
    if shares and len(ranks) == state.launch.world_size and (not covers or covers[0].reasons):
        covers.append(_from_shares(shares, faults, ranks))
    return covers


def _seen_covers(state: State, failed: Mapping[str, str], ranks: range) -> list[_Cover]:
    """The same, where every rank must see its file on its own host."""
    shares = [file for file in state.files if file.content is Content.SHARE]
    others = [file for file in state.files if file.content is not Content.SHARE]
    return [_seen_by_ranks(state, files, failed, ranks) for files in (others, shares) if files]


def _seen_by_ranks(state: State, files: Sequence[Checkpoint], failed: Mapping[str, str], ranks: range) -> _Cover:
    views = state.views or {}
    saved_world = state.launch.world_size
    in_shares = files[0].content is Content.SHARE
    groups = [(rank,) for rank in range(saved_world)] if in_shares else state.launch.layout.partition(saved_world)
    group_of = {rank: group for group in groups for rank in group}
    files_of = _by_group(files, groups)
    by_path = {group: {file.path: file for file in every} for group, every in files_of.items()}
    differ = {group for group, every in files_of.items() if len(group) > 1 and unequal_sizes(every)}
    cover = _Cover()
    for rank in ranks:
        group = group_of.get(rank, groups[0])  # a rank more than saved it: then all are one group
        serving = by_path[group]
        if group in differ:
            serving = {path: file for path, file in serving.items() if file.rank == rank}
        chosen = _seen(serving, views[rank], failed, rank) if rank in views else None
        if chosen is not None and in_shares and state.launch.layout.any_world_size:  # it reads those of all (§8)
            serving = next(({file.path: file} for file in files if not _sees(views[rank], file, failed)), serving)
            chosen = chosen if all(_sees(views[rank], file, failed) for file in serving.values()) else None
        if chosen is not None:
            cover.served.append(Assignment(rank, chosen))
        elif len(cover.reasons) < _EXPLAINED:
            reason, faults = _unseen(rank, serving, views, failed)
            cover.reasons.append(reason)
            if faults:
                cover.remedies.append(remedies.of_ranks([rank], group, files_of[group], faults, in_shares=in_shares))
    return cover


def _seen(files: Mapping[str, Checkpoint], view: View, failed: Mapping[str, str], rank: int) -> Checkpoint | None:
    """The file that a rank sees as it was recorded, its own before others; None if it sees none."""
    there = [file for path in view.seen if (file := files.get(path)) is not None and _sees(view, file, failed)]
    return min(there, key=lambda file: (file.rank != rank, file.rank, *_preference(file)), default=None)


def _sees(view: View, file: Checkpoint, failed: Mapping[str, str]) -> bool:
    return file.path in view.seen and fault(file, view.seen[file.path], failed) is None


def _unseen(
    rank: int, files: Mapping[str, Checkpoint], views: Mapping[int, View], failed: Mapping[str, str]
) -> tuple[Reason, dict[str, Reason]]:
    """Why no file serves a rank: who sees one, and how it gets there; else what is wrong with those that it sees."""
    if rank not in views:
        return Reason(Rule.MISSING_FILE, rank, f"rank {rank} did not say in time what it sees on its host"), {}
    host, seen = views[rank]
    for view in views.values():
        found = _seen(files, view, failed, rank)
        if found is not None and view.host != host:
            copy = f"rsync -a --mkpath {quote(f'{view.host}:{found.path}')} {quote(found.path)}"
            detail = f"rank {rank} on {host} does not see {found.path}, {view.host} does; on {host}: {copy}"
            return Reason(Rule.MISSING_FILE, rank, detail), {}
    looked_at = ((file.id, fault(file, seen[path], failed)) for path, file in files.items() if path in seen)
    faults = {id_: reason for id_, reason in looked_at if reason is not None}
    if faults:
        return next(iter(faults.values())), faults
    named = next(iter(files), "a file that serves it")
    return Reason(Rule.MISSING_FILE, rank, f"rank {rank} on {host} does not see {named}"), {}


def _serves_any(state: State, *, takes_whole: bool) -> bool:
    """Whether one file serves any rank of any number of ranks, and they take it as it is."""
    launch = state.launch
    is_whole = launch.layout.any_world_size or launch.world_size == 1
    return takes_whole and is_whole and any(file.content is not Content.SHARE for file in state.files)


def _reject_other_world(
    state: State,
    asked: int,
    as_saved: RestorePlan | Rejection,
    seen: Mapping[str, Observed],
    failed: Mapping[str, str],
) -> Rejection:
    """Why another number of ranks cannot load it, and all that is wrong with it for those that saved it.

    Conversion reads the file of every rank, and would make weights out of one that is cut: it is named only where each
    rank has a whole one of its own.
    """
    reason = _other_world(state, asked)
    if isinstance(as_saved, Rejection):
        return replace(as_saved, reasons=(reason, *as_saved.reasons))
    files = [file for file in state.files if file.content is not Content.WEIGHTS]
    is_sound = not any(fault(file, seen.get(file.path), failed) for file in files)
    remedy = remedies.of_other_world(state, is_sound=is_sound and not _has_stand_ins(as_saved))
    return replace(_reject(state, [reason]), remedies=(remedy,))


def _other_world(state: State, asked: int) -> Reason:
    launch = state.launch
    if all(file.content is Content.SHARE for file in state.files):
        what = "each file is a share of the state"
    elif launch.layout.any_world_size or launch.world_size == 1:
        what = "the new ranks do not hold the whole state, as those did"
    else:
        what = f"no file serves every rank (layout: {launch.layout.source})"
    saved_by = count(launch.world_size, "rank", "ranks")
    return Reason(Rule.WORLD_SIZE, None, f"saved by {saved_by}, asked for {asked}, and {what}")


@dataclass
class _Cover:
    """The ranks that get a file, why others get none, and what would give them one."""

    served: list[Assignment] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)

    def in_order(self) -> tuple[Assignment, ...]:
        """What is served, by rank."""
        return tuple(sorted(self.served, key=attrgetter("rank")))


def _from_whole_states(state: State, files: Sequence[Checkpoint], faults: Mapping[str, Reason], ranks: range) -> _Cover:
    saved_world = state.launch.world_size
    layout = state.launch.layout
    whole = _by_rank(files, faults)
    if len(ranks) == saved_world and all(rank in whole for rank in ranks):
        return _Cover([Assignment(rank, whole[rank]) for rank in ranks])
    cover = _Cover()
    groups = layout.partition(saved_world)
    files_of = _by_group(files, groups)
    unfinished = next((name for file in files if (name := unfinished_ttp_directory(file.path))), "")
    left = f"; {unfinished} was never renamed, and what is in it does not cover the rank" if unfinished else ""
    for group in groups:
        served = group if len(ranks) == saved_world else tuple(ranks)
        unequal = unequal_sizes(files_of[group]) if len(group) > 1 else ""
        own = {rank: whole[rank] for rank in group if rank in whole}
        able = served if own and not unequal else tuple(rank for rank in served if rank in own)
        cover.served += _serve(able, own, state.hosts)
        missing = sorted(set(served).difference(able))
        if missing:
            cover.reasons += _why_not(files_of[group], group, missing, faults, unequal, left=left)
            cover.remedies.append(remedies.of_ranks(missing, group, files_of[group], faults))
    return cover


def _from_shares(files: Sequence[Checkpoint], faults: Mapping[str, Reason], ranks: range) -> _Cover:
    """Every rank's own share: none stands in for another, and only all of them are the state (mindspore.md §8)."""
    whole = _by_rank(files, faults)
    missing = [rank for rank in ranks if rank not in whole]
    by_rank = sorted(files, key=lambda file: (file.rank, file.path))
    cover = _Cover([Assignment(rank, whole[rank]) for rank in ranks if rank in whole])
    cover.reasons += [faults[file.id] for file in by_rank if file.rank not in whole and file.id in faults]
    explained = {reason.rank for reason in cover.reasons}
    for rank in missing:
        if rank not in explained:
            detail = f"the share of rank {rank} was not recorded, and no other file holds it (remove_redundancy)"
            cover.reasons.append(Reason(Rule.MISSING_RANK, rank, detail))
    if missing:
        cover.remedies.append(remedies.of_ranks(missing, missing, by_rank, faults, in_shares=True))
    return cover


def _has_stand_ins(plan: RestorePlan) -> bool:
    return any(rank != source.rank for rank, source in plan.ranks)


def _by_rank(files: Iterable[Checkpoint], faults: Mapping[str, Reason]) -> dict[int, Checkpoint]:
    chosen: dict[int, Checkpoint] = {}
    for file in files:
        if faults and file.id in faults:
            continue
        other = chosen.setdefault(file.rank, file)
        if other is not file and _preference(file) < _preference(other):
            chosen[file.rank] = file
    return chosen


def _quarantined(state: State) -> list[Reason]:
    bad = sorted([file for file in state.files if file.quarantine], key=lambda file: (file.rank, file.path))
    return [Reason(Rule.QUARANTINED, file.rank, f"{file.path}: {file.quarantine}") for file in bad]


def _foreign(state: State) -> list[Reason]:
    found = next((file for file in state.files if file.format in FOREIGN), None)
    if found is None:
        return []
    return [Reason(Rule.FOREIGN_FORMAT, None, f"MindSpore cannot load {found.path}: its format is {found.format}")]


def reject_foreign(state: State) -> Rejection:
    """Why a state that another tool saved in parts is not taken, whatever the disk shows."""
    there = {file.rank for file in state.files if file.state is FileState.COMPLETE}
    gone = state.launch.world_size - len(there)
    lost = f", of which those of {gone} of {state.launch.world_size} are not there" if gone > 0 else ""
    first = min((file.path for file in state.files), default="nothing any more")
    detail = f"it is in files of MindFormers 2.0, as {first}{lost}: MindFormers has to load it"
    return _reject(state, [Reason(Rule.FOREIGN_FORMAT, None, detail), *_quarantined(state)])


def _by_group(
    files: Iterable[Checkpoint], groups: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...], list[Checkpoint]]:
    group_of = {rank: group for group in groups for rank in group}
    found: dict[tuple[int, ...], list[Checkpoint]] = {group: [] for group in group_of.values()}
    for file in files:
        if file.rank in group_of:
            found[group_of[file.rank]].append(file)
    for every in found.values():
        if len(every) > 1:
            every.sort(key=lambda file: (file.rank, *_preference(file)))
    return found


def _serve(ranks: Iterable[int], own: Mapping[int, Checkpoint], hosts: Mapping[int, str]) -> list[Assignment]:
    """Give each rank its own file, or one of its replicas.

    What was written on the rank's own host is nearest, of several files as near that of the lowest rank.
    """
    if not own:
        return []
    lowest = own[min(own)]
    nearest = {hosts[rank]: own[rank] for rank in sorted(own, reverse=True) if rank in hosts}
    return [Assignment(rank, own.get(rank) or nearest.get(hosts.get(rank, ""), lowest)) for rank in ranks]


def _preference(file: Checkpoint) -> tuple[int, str]:
    """Which of several whole files of one rank to take: the order must not depend on that of the input."""
    return _KIND_ORDER[file.kind], file.path


def _why_not(
    files: Iterable[Checkpoint],
    group: tuple[int, ...],
    missing: Iterable[int],
    faults: Mapping[str, Reason],
    unequal: str,
    *,
    left: str,
) -> list[Reason]:
    """Every fault of the files of a replica group, and each rank of it that nothing can serve."""
    reasons = [faults[file.id] for file in files if file.id in faults]
    explained = {reason.rank for reason in reasons}
    others = f" nor of its replicas {show(group)}" if len(group) > 1 else ""
    for rank in missing:
        if unequal:
            detail = f"no file of its own, and none stands in since the replicas differ: {unequal}"
            reasons.append(Reason(Rule.REPLICA_SIZE_MISMATCH, rank, detail))
        elif rank not in explained:
            detail = f"no file of rank {rank}{others} {'can be used' if reasons else 'was recorded'}{left}"
            reasons.append(Reason(Rule.MISSING_RANK, rank, detail))
    return reasons


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
