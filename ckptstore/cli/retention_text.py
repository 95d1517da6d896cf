"""The output of the commands of retention, for people."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ckptstore.cli import values
from ckptstore.cli.terminal import Rows, error, first, kinds, line, moment
from ckptstore.core.hints import Command, as_options
from ckptstore.core.text import count, size
from ckptstore.resume.uncertainty import of_absent, of_unmoved
from ckptstore.retention import dicts
from ckptstore.retention.decide import Why

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.recent import Waiting
    from ckptstore.core.model import Skipped
    from ckptstore.retention.decide import Verdict
    from ckptstore.retention.execute import Collected, RunCollected
    from ckptstore.retention.in_tier import TierCollected, TierOutcome, TierPlan
    from ckptstore.retention.in_trash import Purged, Undone
    from ckptstore.retention.plan import GcPlan
    from ckptstore.retention.policy import Policy

_SHOWN = 20
_NO_POLICY = "no run has a stored policy"


def collected(outcomes: Sequence[RunCollected], *, only_errors: bool) -> int:
    """Print the plan and the outcome of each run; errors on stderr. Return the exit code."""
    code = 0
    for outcome in outcomes:
        if outcome.plan is not None and not only_errors:
            _plan(outcome.plan)
            if outcome.done is not None:
                _done(outcome.done)
            elif outcome.error is None:
                _what_next(outcome.plan)
            _in_trash(outcome.waiting)
            unmoved(outcome.run, outcome.waiting)
        code = code or _failed(outcome, outcomes, as_json=only_errors)
        if outcome.plan is not None and outcome.plan.unseen:
            _unseen(outcome.plan)
            code = code or 1
        if outcome.done is not None:
            code = troubles(outcome.done.troubles, outcome.run) or code
    if not outcomes and not only_errors:
        line(_NO_POLICY)
    return code


def _failed(
    outcome: RunCollected | TierOutcome, outcomes: Sequence[RunCollected | TierOutcome], *, as_json: bool
) -> int:
    """Print the error of a run on stderr, if there is one. Return the exit code."""
    if outcome.error is None:
        return 0
    where = f"run {outcome.run}: " if len(outcomes) > 1 else ""
    failed = outcome.error
    error(f"{where}{failed.message}", failed.hint, failed.exit_code, as_json=as_json)
    return failed.exit_code


def _in_trash(waiting: Sequence[Waiting]) -> None:
    """Print the size of the trash, and when its files are deleted."""
    waiting = [each for each in waiting if each.files]
    if waiting:
        files, room = sum(each.files for each in waiting), sum(each.bytes for each in waiting)
        goes = moment(min(each.purged_from for each in waiting))
        what = f"{count(files, 'file', 'files')}, {size(room)}"
        which = ("it" if files == 1 else "them") if len(waiting) == 1 else "the first of them"
        line(f"in the trash: {what}; the first gc or purge after {goes} deletes {which}")


def unmoved(run: str, waiting: Sequence[Waiting]) -> None:
    """Print the number of files that gc could not move, and what to do."""
    if told := of_unmoved(run, waiting):
        line(": ".join(told))


def undone(done: Undone) -> None:
    """Print how many files were brought back."""
    for newer in done.passed_over:
        line(f"run {done.run}: nothing of the gc of {moment(newer)} could be brought back; of the gc before that:")
    line(f"run {done.run}: {count(done.files, 'file', 'files')} brought back, {size(done.bytes)}")


def not_undone(done: Undone) -> int:
    """Print on stderr which files could not be brought back. Return the exit code."""
    if done.gone:
        were = count(done.gone, "file was", "files were")
        line(f"ckptstore: run {done.run}: {were} not in the trash any more", err=True)
    return troubles(done.troubles, done.run) or int(done.gone > 0)


def purged(done: Purged) -> None:
    """Print the deleted and the waiting files."""
    line(f"run {done.run}: {count(done.files, 'file', 'files')} deleted for good, {size(done.bytes)}")
    if done.waiting:
        until = f" until {moment(done.next_at)}" if done.next_at else ""
        marked = "; undo brings back pinned and tagged states" if done.is_marked and not done.next_at else ""
        waits = count(done.waiting, "file waits", "files wait")
        line(f"{waits} in the trash{until}, {size(done.waiting_bytes)}{marked}")


def policy(run: str, stored: Policy | None) -> None:
    """Print the stored policy as options of gc."""
    if stored is None:
        line(f"no policy is stored for run {run}: give gc its rules, as --keep-last 5")
        return
    line(f"run {run}: {shlex.join(as_options(stored.to_json()))}")


def troubles(found: Sequence[Skipped], run: str) -> int:
    """Print on stderr which files could not be moved or deleted. Return the exit code."""
    for trouble in found[:_SHOWN]:
        line(f"ckptstore: {trouble.path}: {trouble.reason}", err=True)
    if found:
        line(
            f"ckptstore: {count(len(found), 'file', 'files')} of run {run} could not be dealt with; nothing is lost: "
            "remove the causes named above, then run the command again",
            err=True,
        )
    return 1 if found else 0


def _plan(plan: GcPlan) -> None:
    decision = plan.decision
    shown = Rows("", "launch", ">step", "kind", ">size", "why")
    for word, verdicts in (("keep", decision.keep), ("remove", decision.remove)):
        for verdict in verdicts:
            _row(shown, word, verdict)
    shown.print(f"no state of run {plan.run} can be seen" if plan.unseen else f"run {plan.run} has no states on disk")
    for each in first(plan.debris, "debris"):
        line(f"debris: {each.path} ({size(each.size)}): {each.reason}")
    for other in first(plan.unknown, "left alone"):
        line(f"left alone: {other.path}: {other.reason}")


def _unseen(plan: GcPlan) -> None:
    """Print unreadable places on stderr: an unmounted disk must not look like an empty one."""
    for each in plan.unseen[:_SHOWN]:
        line(f"ckptstore: {each.path}: {each.reason}", err=True)
    if len(plan.unseen) > _SHOWN:
        line(f"ckptstore: … and {len(plan.unseen) - _SHOWN} more directories; --json has all", err=True)
    line(f"ckptstore: gc keeps what it could not read of run {plan.run}: {of_absent(plan.run)}", err=True)


def _row(shown: Rows, word: str, verdict: Verdict) -> None:
    state = verdict.state
    shown.add_row(
        word,
        state.launch,
        str(state.global_step),
        kinds(state.kinds),
        size(state.bytes),
        "; ".join(
            each.detail + (" (with replicas' files)" if each.rule is Why.FLOOR and state.by_replicas else "")
            for each in verdict.reasons
        ),
    )


def _what_next(plan: GcPlan) -> None:
    going, staying = len(plan.decision.remove), len(plan.decision.keep)
    would = f"{count(going, 'state', 'states')} would go, {staying} stay; {size(plan.bytes_freed)} would be freed"
    line(f"run {plan.run}: {would}" + ("; --apply does it" if going or plan.debris else ""))


def _done(done: Collected) -> None:
    for skipped in first(done.skipped, "that stay"):
        line(f"stays: {skipped.path}: {skipped.reason}")
    files = f"{count(done.files, 'file', 'files')} of {count(len(done.removed), 'state', 'states')}"
    if not done.files:
        line(f"run {done.run}: nothing was removed")
    elif done.at_once or done.purge_after is None:
        line(f"run {done.run}: {files} deleted, {size(done.bytes)} freed")
    else:
        until = moment(done.purge_after)
        them = "it" if done.files == 1 else "them"
        line(f"run {done.run}: {files} moved to the trash, {size(done.bytes)}; undo brings {them} back until {until}")
    if done.purged_files:
        line(f"{count(done.purged_files, 'file', 'files')} of earlier gcs deleted for good, {size(done.purged_bytes)}")


def in_tier(outcomes: Sequence[TierOutcome], *, all_runs: bool, as_json: bool) -> int:
    """Print the plan of gc for the copies in a tier, and its outcome. Return the exit code."""
    if as_json:
        shown = [dicts.in_tier(outcome) for outcome in outcomes if outcome.plan is not None]
        values.write(shown) if all_runs or shown else None
    elif not outcomes:
        line(_NO_POLICY)
    code = 0
    for outcome in outcomes:
        if outcome.plan is not None and not as_json:
            _copies(outcome.plan, outcome.done, is_refused=outcome.error is not None)
        code = code or _failed(outcome, outcomes, as_json=as_json)
        if outcome.done is not None:
            code = _of_tier(outcome.done.troubles) or code
    return code


def _copies(plan: TierPlan, done: TierCollected | None, *, is_refused: bool) -> None:
    goes, stays = plan.decision.remove, plan.decision.keep
    stay, freed = count(len(stays), "state stays", "states stay"), size(plan.decision.bytes_freed)
    line(f"run {plan.run}, tier {plan.tier.name}: {stay}, {len(goes)} go ({freed})")
    for word, verdicts in (("keep", stays), ("remove", goes)):
        for verdict in first(verdicts, "states", _SHOWN, indent="  "):
            why = "; ".join(because.detail for because in verdict.reasons)
            line(f"  {word} step {verdict.state.global_step} of launch {verdict.state.launch}: {why}")
    if done is not None:
        line(f"{count(done.copies, 'copy', 'copies')}, {size(done.bytes)}, trashed; {done.purged} deleted")
        back = Command("undo", plan.run, "--tier", plan.tier.name)
        line(f"{back} brings them back") if done.copies else None
        for each in done.skipped:
            line(f"{each.path} stays: {each.reason}")
    elif goes and not is_refused:
        line("nothing was changed; --apply does it")


def of_copies(done: TierCollected, did: str, *, as_json: bool) -> int:
    """Print the number of copies in a tier that undo or purge changed. `did`: the verb. Return the exit code."""
    if as_json:
        values.write(dicts.of_copies(done))
    else:
        line(f"run {done.run}, tier {done.tier}: {count(done.copies + done.purged, 'copy', 'copies')} {did}")
        for each in done.skipped:
            line(f"{each.path} stays: {each.reason}")
    return _of_tier(done.troubles)


def _of_tier(found: Sequence[Skipped]) -> int:
    for each in first(found, "copies"):
        line(f"{each.path}: {each.reason}", err=True)
    return 1 if found else 0
