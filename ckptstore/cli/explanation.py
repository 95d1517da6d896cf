"""Prints a resolution for people: the plan, and in full the faults of every newer state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.cli.terminal import Rows, first, kinds, line, lines
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Call
from ckptstore.core.naming import unfinished_ttp_directory
from ckptstore.core.picture import picture
from ckptstore.core.text import count, of_ranks, ranges, size
from ckptstore.resume.remedies import BY_MOVING, how_to_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.core.model import Assignment, Rejection, Resolution, RestorePlan
    from ckptstore.core.reference import Best

_RANKS_SHOWN = 16
_REASONS_SHOWN = 4  # of one rule; if there are more, the ranks and one example are shown
_REMEDIES_SHOWN = 8
_STATES_SHOWN = 40
_UNPLACED_SHOWN = 8


def resolution(found: Resolution, *, is_asked: bool, in_full: bool) -> None:
    """Print the plan, and why newer or better states are not taken. `is_asked`: the user asked for a certain state."""
    if found.plan is None:
        line(found.why_none)
    else:
        _plan(found.run, found.plan, found.best, is_asked=is_asked, in_full=in_full)
        _to_fetch(found, found.plan, in_full=in_full)
    _unplaced(found, in_full=in_full)
    if not found.rejections:
        if in_full and found.plan is None and found.step is None:
            line("no save of it was found")
        elif in_full and found.plan is not None and not found.unplaced:
            which = "better" if found.best else "newer"
            line(f"no {which} state was passed over" if found.step is None else "no other step was looked at")
        return
    if not in_full:
        if found.plan is None and found.step is not None:
            line("--explain says why")
            return
        newer = "" if found.plan is None else "better " if found.best else "newer "
        passed_over = count(len(found.rejections), f"{newer}state was", f"{newer}states were")
        line(f"{passed_over} passed over; --explain says why")
        return
    lines(("", "passed over:"))
    for rejection in first(found.rejections, "states", _STATES_SHOWN, indent="  "):
        _rejection(rejection)
    shown = picture([*found.rejections[:_STATES_SHOWN], *([found.plan] if found.plan else [])])
    if shown:
        lines(("", *shown))


def _unplaced(found: Resolution, *, in_full: bool) -> None:
    """Print the newer files without a certain step or rank, and the commands that place them."""
    if not found.unplaced:
        return
    many = count(len(found.unplaced), "newer file has", "newer files have")
    if not in_full:
        line(f"{many} no certain step or rank: a start is refused until that is settled; --explain says how")
        return
    way = Call("resume", "step=…")
    line(f"{many} no certain step or rank: a start is refused until each is placed, or you write {way}")
    for each in first(found.unplaced, "", _UNPLACED_SHOWN, indent="  "):
        guess = "" if each.best_guess is None else f" (perhaps step {each.best_guess})"
        line(f"  {each.path}{guess}: {each.reason}")
        line(f"    to place it: {how_to_place(found.run, each) if each.remedy else BY_MOVING}")


def _plan(run: str, plan: RestorePlan, best: Best | None, *, is_asked: bool, in_full: bool) -> None:
    steps = plan.launch.steps_per_epoch
    place = f" (epoch {plan.epoch}, step {plan.step_in_epoch} of {steps})" if steps else ""
    if best is None:
        step = f"step {plan.global_step}"
        goes_on = (
            f"step {plan.global_step} of run {run}{place} can be restored"
            if is_asked
            else f"run {run} goes on after {step}{place}"
        )
        line(f"{goes_on}, saved by launch {plan.launch.id}")
    else:
        word, value = "lowest" if best.mode == "min" else "highest", plan.metrics.get(best.metric)
        shown = "" if value is None else f", {value:.6g}"  # None: a replica stands in for the rank that measured it
        line(f"step {plan.global_step} of run {run}{place} has the {word} {best.metric}{shown}")
    if plan.doubt:
        line(f'the grade of that step is "{plan.grade}", not "proven": {plan.doubt}')
    rows = Rows(">rank", "loads the file of", "kind", ">size", "file")
    for assignment in plan.ranks[:_RANKS_SHOWN]:
        source = assignment.source
        own = source.rank == assignment.rank
        rows.add_row(
            str(assignment.rank),
            "itself" if own else f"rank {source.rank}, its replica",
            source.kind.value,
            size(source.size or 0),
            source.path if (copy := plan.copy_of(source)) is None else f"{source.path}, from tier {copy.tier.name}",
        )
    rows.print("")
    helped = [each for each in plan.ranks if each.source.rank != each.rank]
    if len(plan.ranks) > _RANKS_SHOWN:
        others = plan.ranks[_RANKS_SHOWN:]
        by_replica = sum(assignment.source.rank != assignment.rank for assignment in others)
        line(f"… and {len(others)} more ranks, {by_replica} of them load a replica's file; --json has all")
    if in_full and helped:
        line(_stand_ins(helped))
    unfinished = {name for each in plan.ranks if (name := unfinished_ttp_directory(each.source.path))}
    for name in sorted(unfinished):
        line(f"{name} is of an unfinished TTP save; the files in it and beside it cover every rank")


def _to_fetch(found: Resolution, plan: RestorePlan, *, in_full: bool) -> None:
    """Print how much must be fetched, and how much older the newest state is that needs no copy."""
    if not plan.copies:
        return
    tiers = ", ".join(sorted({copies[0].tier.name for copies in plan.copies.values()}))
    files = count(len(plan.copies), "file", "files")
    line(f"{files}, {size(plan.bytes_to_fetch)}, must be fetched from {tiers}; a start does that")
    older = found.without_fetching
    if in_full and older is not None:
        steps = count(plan.global_step - older.global_step, "step", "steps")
        line(f"step {older.global_step} needs no copy, and is {steps} older: {Call('resume', step=older.global_step)}")
    elif in_full:
        line("no state can be restored without copies")


def _stand_ins(helped: Sequence[Assignment]) -> str:
    by_source = grouped((each.source.rank, each.rank) for each in helped)
    parts = [
        f"{of_ranks(ranks)} {'loads' if len(ranks) == 1 else 'load'} the file of a replica, rank {source}"
        for source, ranks in sorted(by_source.items())
    ]
    return "; ".join(parts[:_RANKS_SHOWN]) + (" …" if len(parts) > _RANKS_SHOWN else "")


def _rejection(rejection: Rejection) -> None:
    served = ""
    if rejection.served:
        replicas = sum(each.source.rank != each.rank for each in rejection.served)
        by = f", {replicas} of them a replica's" if replicas else ""
        served = f": {len(rejection.served)} of {rejection.world_size} ranks have a file{by}"
    line(f"  step {rejection.global_step} ({kinds(rejection.kinds)}, launch {rejection.launch}){served}")
    by_rule = grouped((reason.rule.value, reason) for reason in rejection.reasons)
    for rule, reasons in by_rule.items():
        if len(reasons) <= _REASONS_SHOWN:
            for reason in reasons:
                where = "" if reason.rank is None else f"rank {reason.rank}: "
                line(f"    {where}{rule}: {reason.detail}")
        else:
            ranks = ranges(reason.rank for reason in reasons if reason.rank is not None)
            line(f"    ranks {ranks}: {rule}: {len(reasons)} in all, such as: {reasons[0].detail}")
    for remedy in first(rejection.remedies, "like it", _REMEDIES_SHOWN, indent="    "):
        line(f"    to repair: {remedy}")
