"""Which state does a run go on from? The newest of its lineage that is provably one whole state.

`resolve` walks the candidates, newest first, and stops at the first that `judge` accepts. Both only decide: the
caller brings the candidates and looks at the disk.
"""

from __future__ import annotations

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
from ckptstore.core.naming import unfinished_ttp_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ckptstore.core.replicas import Layout

    Look = Callable[[State], Mapping[str, Observed]]

_KIND_ORDER = {kind: place for place, kind in enumerate(Kind)}
_RANKS_SHOWN = 8
_APPENDED_BYTES = 1024  # more than OnRequestExit appends: five numbers with their names

UNTRAINED = Reason(Rule.UNTRAINED, None, "no step had been done: the network is untrained")
NOT_LINEAGE = Reason(Rule.NOT_LINEAGE, None, "the run went back to an older state, and on from there")


def resolve(
    run: str,
    candidates: Iterable[State],
    look: Look,
    *,
    world_size: int | None = None,
    take_quarantined: bool = False,
) -> Resolution:
    """The first candidate that is whole, as a plan, and why each one before it is not.

    `candidates` come newest first; `look` tells what the disk shows of a candidate's files, by path, and is asked
    only until a plan is found. `world_size` is that of the launch that will load the plan (None: as it was saved).
    """
    rejections: list[Rejection] = []
    for state in candidates:
        verdict = judge(state, look(state), world_size=world_size, take_quarantined=take_quarantined)
        if isinstance(verdict, RestorePlan):
            return Resolution(run, verdict, tuple(rejections))
        rejections.append(verdict)
    return Resolution(run, None, tuple(rejections))


def judge(
    state: State, seen: Mapping[str, Observed], *, world_size: int | None = None, take_quarantined: bool = False
) -> RestorePlan | Rejection:
    """A plan for every rank, or every reason why there is none.

    Files of the whole state serve first, replicas standing in for each other; else shares, of which every rank must
    have its own. A state is quarantined as a whole: what was wrong on one rank has reached the others' weights.
    """
    saved_world = state.launch.world_size
    ranks = range(saved_world if world_size is None else world_size)
    if state.global_step == 0:
        return _reject(state, [UNTRAINED])
    quarantined = [] if take_quarantined else _quarantined(state)
    if quarantined:
        return _reject(state, quarantined)

    faults = {file.id: fault for file in state.files if (fault := _fault(file, seen.get(file.path))) is not None}
    shares = [file for file in state.files if file.content is Content.SHARE]
    others = [file for file in state.files if file.content is not Content.SHARE]
    reasons: list[Reason] = []
    if others or not shares:
        chosen, reasons = _from_whole_states(state, others, faults, ranks)
        if not reasons:
            return _plan(state, chosen)
    if shares:
        chosen, lacking = _from_shares(state, shares, faults, ranks)
        if not lacking:
            return _plan(state, chosen)
        reasons += lacking
    return _reject(state, reasons)


def _from_whole_states(
    state: State, files: Sequence[Checkpoint], faults: Mapping[str, Reason], ranks: range
) -> tuple[list[Assignment], list[Reason]]:
    """A file for every rank, its own or a replica's; and why that cannot be."""
    saved_world = state.launch.world_size
    layout = state.launch.layout
    if len(ranks) != saved_world and not layout.any_world_size:
        detail = f"saved by {saved_world} ranks, asked for {len(ranks)}, and no file serves every rank"
        return [], [Reason(Rule.WORLD_SIZE, None, detail)]
    whole = _by_rank(files, faults)
    assignments: list[Assignment] = []
    reasons: list[Reason] = []
    groups = layout.partition(saved_world)
    files_of = _by_group(files, groups)
    unfinished = next((name for file in files if (name := unfinished_ttp_directory(file.path))), "")
    left = f"; {unfinished} was never renamed, and what is in it does not cover the rank" if unfinished else ""
    for group in groups:
        served = group if len(ranks) == saved_world else tuple(ranks)
        unequal = _unequal_sizes(files_of[group])
        own = {rank: whole[rank] for rank in group if rank in whole}
        chosen, missing = _serve(served, own, own[min(own)] if own and not unequal else None)
        assignments += chosen
        if missing:
            reasons += _why_not(files_of[group], group, missing, faults, unequal, left=left)
    return assignments, reasons


def _from_shares(
    state: State, files: Sequence[Checkpoint], faults: Mapping[str, Reason], ranks: range
) -> tuple[list[Assignment], list[Reason]]:
    """Every rank's own share: none stands in for another, and only all of them are the state (domain §8)."""
    saved_world = state.launch.world_size
    if len(ranks) != saved_world:
        detail = f"saved in shares by {saved_world} ranks, asked for {len(ranks)}"
        return [], [Reason(Rule.WORLD_SIZE, None, detail)]
    whole = _by_rank(files, faults)
    chosen, missing = _serve(tuple(ranks), whole, None)
    by_rank = sorted(files, key=lambda file: (file.rank, file.path))
    reasons = [faults[file.id] for file in by_rank if file.rank in missing and file.id in faults]
    explained = {reason.rank for reason in reasons}
    for rank in missing:
        if rank not in explained:
            detail = f"the share of rank {rank} was not recorded, and no other file holds it (remove_redundancy)"
            reasons.append(Reason(Rule.MISSING_RANK, rank, detail))
    return chosen, reasons


def _plan(state: State, assignments: Iterable[Assignment]) -> RestorePlan:
    in_order = sorted(assignments, key=lambda assignment: assignment.rank)
    return RestorePlan(launch=state.launch, global_step=state.global_step, ranks=tuple(in_order))


def _by_rank(files: Iterable[Checkpoint], faults: Mapping[str, Reason]) -> dict[int, Checkpoint]:
    """The file to take of each rank that has one without fault."""
    faultless = (file for file in files if file.id not in faults)
    return {file.rank: file for file in sorted(faultless, key=_preference, reverse=True)}


def _quarantined(state: State) -> list[Reason]:
    bad = sorted((file for file in state.files if file.quarantine), key=lambda file: (file.rank, file.path))
    return [Reason(Rule.QUARANTINED, file.rank, f"{file.path}: {file.quarantine}") for file in bad]


def covers_every_rank(layout: Layout, ranks_with_a_file: Iterable[int], world_size: int) -> bool:
    """Whether files of those ranks make up a state of the whole job, by the layout alone."""
    have = set(ranks_with_a_file)
    return all(any(rank in have for rank in group) for group in layout.partition(world_size))


def _by_group(
    files: Iterable[Checkpoint], groups: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...], list[Checkpoint]]:
    """The files of each group, by rank."""
    group_of = {rank: group for group in groups for rank in group}
    found: dict[tuple[int, ...], list[Checkpoint]] = {group: [] for group in group_of.values()}
    for file in sorted(files, key=lambda file: (file.rank, *_preference(file))):
        if file.rank in group_of:
            found[group_of[file.rank]].append(file)
    return found


def _serve(
    ranks: tuple[int, ...], own: Mapping[int, Checkpoint], stand_in: Checkpoint | None
) -> tuple[list[Assignment], list[int]]:
    """Give each rank its own file, or the one that stands in for it; and the ranks that get none."""
    chosen: list[Assignment] = []
    missing: list[int] = []
    for rank in ranks:
        source = own.get(rank, stand_in)
        if source is None:
            missing.append(rank)
        else:
            chosen.append(Assignment(rank, source))
    return chosen, missing


def _preference(file: Checkpoint) -> tuple[int, str]:
    """Which of several whole files of one rank to take: the order must not depend on that of the input."""
    return _KIND_ORDER[file.kind], file.path


def _fault(file: Checkpoint, seen: Observed | None) -> Reason | None:
    """What keeps one file from being loaded; None if it is there as it was recorded."""
    broken = _broken_rule(file, seen or Observed(None))
    return None if broken is None else Reason(broken[0], file.rank, f"{file.path} {broken[1]}")


def _broken_rule(file: Checkpoint, seen: Observed) -> tuple[Rule, str] | None:
    broken: tuple[Rule, str] | None = None
    if file.content is Content.WEIGHTS:
        broken = Rule.WEIGHTS_ONLY, "holds weights without the optimizer's state"
    elif file.state is FileState.DAMAGED:
        broken = file.problem or Rule.QUARANTINED, "was found to be damaged"
    elif file.state is FileState.TRASHED:
        broken = Rule.MISSING_FILE, "was removed by gc: ckptstore undo brings it back while it is in the trash"
    elif seen.unreadable:
        broken = Rule.UNREADABLE, f"cannot be looked at: {seen.unreadable}"
    elif file.size is None:
        broken = Rule.IN_PROGRESS, "was never finished" if seen.size is None else "is being written"
    elif seen.size is None:
        broken = Rule.MISSING_FILE, "is gone"
    elif seen.size != file.size:
        broken = Rule.SIZE_MISMATCH, f"has {seen.size} bytes, {file.size} were recorded"
    elif seen.rewritten and file.digest is None:
        broken = Rule.DIGEST_MISMATCH, "was written again since it was recorded: scan its directory again"
    elif seen.digest is not None and seen.digest != file.digest:
        broken = Rule.DIGEST_MISMATCH, "has other bytes than those recorded"
    return broken


def _unequal_sizes(files: Iterable[Checkpoint]) -> str:
    """Replicas hold the same parameters: where their files of one kind and format differ in size, none stands in.

    Sizes are compared as they were recorded, those of lost files too: losing a file must never prove more.
    A rank may have several files, of several ModelCheckpoints. Empty if the ranks agree, else who has how many bytes.
    """
    sizes: dict[tuple[Kind, str], dict[int, set[int]]] = {}
    for file in files:
        if file.size is not None and file.content is Content.FULL:
            sizes.setdefault((file.kind, file.format), {}).setdefault(file.rank, set()).add(file.size)
    for (kind, _), by_rank in sizes.items():
        first = next(iter(by_rank.values()))
        if any(not _alike(kind, others, first) for others in by_rank.values()):
            shown = [f"rank {rank} has {_enumerate(tuple(sorted(each)))} bytes" for rank, each in by_rank.items()]
            return ", ".join(shown[:_RANKS_SHOWN])
    return ""


def _alike(kind: Kind, sizes: set[int], others: set[int]) -> bool:
    """Whether two ranks' files may hold the same parameters.

    A rank that was asked to exit by a signal saves again without the appended entries, which its replicas have
    (domain §3): those few bytes do not make graceful exits differ.
    """
    if kind is not Kind.GRACEFUL_EXIT:
        return sizes == others
    return max(sizes | others) - min(sizes | others) <= _APPENDED_BYTES


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
    others = f" nor of its replicas {_enumerate(group)}" if len(group) > 1 else ""
    for rank in missing:
        if unequal:
            detail = f"no file of its own, and none stands in since the replicas differ: {unequal}"
            reasons.append(Reason(Rule.REPLICA_SIZE_MISMATCH, rank, detail))
        elif rank not in explained:
            detail = f"no file of rank {rank}{others} {'can be used' if reasons else 'was recorded'}{left}"
            reasons.append(Reason(Rule.MISSING_RANK, rank, detail))
    return reasons


def _enumerate(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:_RANKS_SHOWN]))
    return shown if len(numbers) <= _RANKS_SHOWN else f"{shown} … ({len(numbers)} in all)"


def _reject(state: State, reasons: list[Reason]) -> Rejection:
    finished = [file for file in state.files if file.size is not None]
    whole = {file.rank for file in finished if file.content is Content.FULL}
    shares = {file.rank for file in finished if file.content is Content.SHARE}
    world_size = state.launch.world_size
    covered = covers_every_rank(state.launch.layout, whole, world_size) or len(shares) == world_size
    was_whole = state.global_step > 0 and covered
    return Rejection(
        launch=state.launch.id,
        global_step=state.global_step,
        kinds=state.kinds,
        reasons=tuple(reasons),
        was_whole=was_whole,
    )
