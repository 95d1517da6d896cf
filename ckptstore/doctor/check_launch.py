"""Checks of a run's progress: the state to go on from, its newest launch, its ranks and their clocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, recent
from ckptstore.catalog.copies import ready_copies
from ckptstore.core.hints import Command
from ckptstore.core.limits import CLOCKS_DIFFER
from ckptstore.core.model import FileState, Kind, Observed, RestorePlan, Rule, moment
from ckptstore.core.text import count, of_ranks, some, span
from ckptstore.disk import presence
from ckptstore.disk.owner import shown
from ckptstore.doctor.checkup import Fact, Status
from ckptstore.doctor.run_facts import folder_of
from ckptstore.doctor.unanswered import NO_ANSWER, unseen_of
from ckptstore.resume.lineage import lineage
from ckptstore.resume.liveness import is_overdue, laggards, restart_loop, usual_pause
from ckptstore.resume.remedies import of_unplaced
from ckptstore.resume.resolve import candidates, newer_than
from ckptstore.resume.resolver import judge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import timedelta

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.gauges import BadState
    from ckptstore.core.model import Launch, Rejection
    from ckptstore.doctor.checkup import Check
    from ckptstore.doctor.run_facts import RunFacts

_STATES_JUDGED = 32
_FAR_BACK = 200
_AGAIN = "start the job again: it goes on from the newest state that can be restored"
_FROM_THE_BEGINNING = "start the job again: nothing was saved yet, so it begins at step 0"


def checks(database: Database, facts: RunFacts) -> Iterator[Check]:
    """Check the state to go on from, the newest launch, its ranks and their clocks."""
    plan, rejected = _newest_restorable(database, facts)
    yield _restorable(facts, plan, rejected)
    yield from _unplaced(database, facts, plan)
    yield newest_launch(facts)
    if facts.passed:
        yield _passed_over(facts)
    if facts.is_saving and facts.saving is not None:
        yield _ranks(database, facts, facts.saving)
    if facts.damaged:
        yield _damaged(facts)
    if facts.saves:
        yield _clocks(facts)


def _unplaced(database: Database, facts: RunFacts, plan: RestorePlan | None) -> Iterator[Check]:
    """Warn of unplaced files that are newer than the state to go on from: a start is refused because of them."""
    with database.read() as connection:
        unplaced = reads.unplaced_of(connection, reads.run_id(connection, facts.run) or 0)
    found = newer_than(plan, unplaced)
    if found:
        what, remedy = of_unplaced(facts.run, found)
        yield facts.check("unplaced", Status.WARNING, what, f"{remedy}; until then a start is refused")


def _restorable(facts: RunFacts, found: RestorePlan | None, rejected: Sequence[Rejection]) -> Check:
    """Check the newest state that can be restored, according to the catalog, and whether its files are there.

    `rejected` are the newer states. A quarantined one among them is a warning: training went on with bad values.
    """
    name = "restorable"
    ask = f"{Command('resolve', facts.run, '--explain')} says why"
    if found is None and not rejected:
        return facts.check(name, Status.NOTE, "nothing was saved yet")
    if found is None:
        newest = "the newest " if len(rejected) == _STATES_JUDGED else ""  # an older one may be restorable
        states = count(len(rejected), "saved state", "saved states")
        return facts.check(name, Status.PROBLEM, f"none of {newest}{states} can be restored", ask)
    files = [assignment.source for assignment in found.ranks]
    fetched = {file.id for file in files if file.id in found.copies}
    saved_at = max((file.created_at for file in files if file.created_at), default=facts.now)
    detail = f"step {found.global_step}, saved {span(facts.now - saved_at)} ago, according to the catalog"
    older = f"{Command('resolve', facts.run)} shows what else can be restored"
    files = [file for file in files if file.id not in fetched]
    gone, hung = unseen_of([file.path for file in files])
    beside = {presence.directory_of(file.path): file for file in files if file.path in gone}
    away = [f"{path} {NO_ANSWER}" for path in sorted(hung)]
    away += [f"{path} {why}" for path, file in beside.items() if (why := presence.absence_beside(file))]
    if away:
        detail += f"; but {count(len(away), 'directory', 'directories')} of it cannot be seen: {away[0]}"
        hint = f"mount it, or ask on a machine that sees it; if it was deleted: {older}"
        return facts.check(name, Status.PROBLEM, detail, hint)
    if gone:
        detail += f"; but {count(len(gone), 'file', 'files')} of it cannot be seen: {min(gone)}"
        return facts.check(name, Status.PROBLEM, detail, f"bring it back; if it is lost: {older}")
    if fetched:
        detail += f"; {count(len(fetched), 'file', 'files')} of it must be fetched from a tier: a start does that"
    bad = [(each, each.reasons[0].detail) for each in rejected if each.reasons[0].rule is Rule.QUARANTINED]
    if rejected:
        detail += f"; {count(len(rejected), 'newer one', 'newer ones')} cannot be restored"
    for each, fault in bad[:1]:
        detail += f"; step {each.global_step} of launch {each.launch} is quarantined: {fault}"
    status = Status.WARNING if bad else Status.NOTE if rejected or fetched else Status.OK
    return facts.check(name, status, detail, ask if rejected else "")


def _newest_restorable(database: Database, facts: RunFacts) -> tuple[RestorePlan | None, list[Rejection]]:
    """The newest state that is complete according to the catalog, and the newer ones that are not.

    No file is looked at. Each state is judged up to three times, until it is complete:

    1. Files in directories that cannot be seen count as missing. If a tree was moved, the catalog knows its files at
       two places, and those at the other place count.
    2. Copies in tiers count too.
    3. All files count as they are recorded.
    """
    away = {directory for directory, seen in facts.around.items() if seen.device is None}
    segments = lineage(list(facts.launches), facts.saved)
    rejected: list[Rejection] = []
    for state in islice(candidates(database, segments, None, facts.failed_loads), _STATES_JUDGED):
        sizes = {file.path: file.size if file.state is FileState.COMPLETE else None for file in state.files}
        as_recorded = {file.path: Observed(sizes[file.path], mtime_ns=file.mtime_ns) for file in state.files}
        here = {path: Observed(None) if folder_of(path) in away else seen for path, seen in as_recorded.items()}
        verdict = judge(state, here)
        if state.launch.has_copies and not isinstance(verdict, RestorePlan):
            with database.read() as connection:
                copies = ready_copies(connection, state.files)
            verdict = judge(replace(state, copies=copies), here)
        if away and not isinstance(verdict, RestorePlan):
            verdict = judge(state, as_recorded)
        if isinstance(verdict, RestorePlan):
            return verdict, rejected
        rejected.append(verdict)
    return None, rejected


def newest_launch(facts: RunFacts) -> Check:
    """Check the newest launch: whether it is running well, or how it ended."""
    newest = facts.newest
    if newest is None or facts.last_sign is None:
        return facts.check("launch", Status.NOTE, "no launch yet")
    loop = restart_loop(facts.launches, facts.saved, [end.error for end in facts.ends], facts.now)
    if loop:
        detail = f"the last {loop} launches saved nothing"
        hint = "see their logs: they end before the first save, or save too seldom"
        return facts.check("launch", Status.WARNING, detail, hint, Fact("restart_loop", facts.launches[-loop].id))
    if facts.ends:
        return _ended(facts, newest)
    if not facts.homes and newest.id not in facts.saved:
        return _not_begun(facts, newest)
    return _goes_on(facts, newest, facts.now - facts.last_sign)


def _again(facts: RunFacts) -> str:
    return _AGAIN if facts.saved else _FROM_THE_BEGINNING


_NEVER_WHOLE = (Rule.MISSING_RANK, Rule.IN_PROGRESS, Rule.WEIGHTS_ONLY, Rule.FOREIGN_FORMAT)
"""Rules of states that were never complete, such as a save that a kill cut short."""


def _passed_over(facts: RunFacts) -> Check:
    """Report that the newest launch started from a state that was not the newest one."""
    newest = facts.passed[0]
    which = f"step {newest.global_step} of launch {newest.launch}"
    others = f", and {count(len(facts.passed) - 1, 'other', 'others')}" if len(facts.passed) > 1 else ""
    detail = f"the newest launch passed over {which}{others}: {newest.rule}: {newest.detail}"
    is_lost = any(each.rule not in _NEVER_WHOLE for each in facts.passed)
    hint = f"{Command('history', facts.run)} has every launch"
    return facts.check("passed_over", Status.WARNING if is_lost else Status.NOTE, detail, hint)


def _damaged(facts: RunFacts) -> Check:
    """Warn of states with damaged files, found by a verification, a start or a scan."""
    newest = max(facts.damaged, key=lambda state: (state.global_step, state.launch))
    others = count(len(facts.damaged) - 1, "other state has", "other states have")
    detail = damage(newest) + (f"; {others} some too" if len(facts.damaged) > 1 else "")
    hint = f"bring back the originals from a backup, then: {Command('verify', facts.run)}"
    return facts.check("damaged", Status.WARNING, detail, hint)


def damage(state: BadState) -> str:
    """The number of damaged files of a state, and one of them with its fault, in words."""
    files = count(state.files, "damaged file", "damaged files")
    why = f" ({state.why})" if state.why else ""
    return f"step {state.global_step} of launch {state.launch} has {files}: {state.path}{why}"


def _goes_on(facts: RunFacts, newest: Launch, silent: timedelta) -> Check:
    """Check a launch without a recorded end. `silent` is the time since its last sign of life."""
    if not facts.homes:
        detail = f"{newest.id}: only its files are known, the newest of {span(silent)} ago"
        return facts.check("launch", Status.OK, detail)
    lost = "its newest records are only in journals, so it may have lost the catalog: see whether it runs; if not, "
    again = f"{lost if facts.heard else ''}{_again(facts)}"
    silent_since = Fact("silent", f"{newest.id} {facts.last_sign}", facts.last_sign)
    if not facts.is_alive:
        detail = f"{newest.id} gave no sign of life for {span(silent)}: it was killed, or hangs"
        if facts.sign is not None and facts.is_gone:
            detail = f"{newest.id} was killed: {shown(facts.sign.process)} is gone, heard of {span(silent)} ago"
        return facts.check("launch", Status.WARNING, detail, again, silent_since)
    moments = list(({saved.step: saved.at for saved in facts.saves if facts.is_saving} | {**facts.heard}).values())
    usual = usual_pause(moments)
    if usual is not None and is_overdue(moments, facts.now):
        detail = f"{newest.id} has not saved for {span(facts.now - max(moments))}, and did every {span(usual)} before"
        saves_no_more = Fact("silent", f"{newest.id} {max(moments)}", max(moments))
        hint = f"see whether it hangs; if it does, {again}"
        return facts.check("launch", Status.WARNING, detail, hint, saves_no_more)
    alive = f"{newest.id} seems to be running; its last sign of life was {span(silent)} ago"
    return facts.check("launch", Status.OK, alive)


def _not_begun(facts: RunFacts, newest: Launch) -> Check:
    if newest.branched:
        detail = f"the run was taken back to step {newest.parent_step} of {newest.parent}, and has not gone on yet"
        return facts.check("launch", Status.NOTE, detail)
    since = facts.now - (newest.created_at or facts.now)
    detail = f"{newest.id} joined {span(since)} ago, and no saver or registrar has reported a step since"
    if since < CLOCKS_DIFFER:
        return facts.check("launch", Status.NOTE, detail)
    return facts.check("launch", Status.WARNING, detail, "see its log; if it died, start the job again")


def _ended(facts: RunFacts, newest: Launch) -> Check:
    step = max(end.global_step for end in facts.ends)
    ended = {end.rank for end in facts.ends}
    silent = {home.rank for home in facts.homes} - ended
    detail = f"{newest.id} ended after step {step} on {of_ranks(ended)}"
    errors = sorted({end.error for end in facts.ends if end.error})
    if errors:
        by = of_ranks({end.rank for end in facts.ends if end.error})
        rest = f"; {of_ranks(silent)} said nothing" if silent else ""
        detail = f"{newest.id} ended by {some(errors)} on {by} after step {step}{rest}"
        again = f"; then {_again(facts)}" if step else ""  # before the first step a start may be refused again
        return facts.check("launch", Status.WARNING, detail, f"see the log of {by}{again}")
    if silent:
        last = max(end.at for end in facts.ends)
        detail = f"{detail}; {of_ranks(silent)} said nothing"
        if facts.now - last < CLOCKS_DIFFER:
            return facts.check("launch", Status.NOTE, detail)
        hint = f"see whether they hang; {_again(facts)}"
        return facts.check("launch", Status.WARNING, detail, hint, Fact("silent", f"{newest.id} {last}", last))
    newest_save = facts.highest_step or newest.start_step or 0
    if newest_save < step:
        detail += f"; its newest save is of step {newest_save}" if newest_save else "; it saved nothing"
        return facts.check(
            "launch", Status.WARNING, detail, f"see the log, and the room on the disk; then {_again(facts)}"
        )
    return facts.check("launch", Status.OK, detail)


def _ranks(database: Database, facts: RunFacts, launch: Launch) -> Check:
    ranks = {home.rank for home in facts.homes if home.kind is Kind.PERIODIC} | {saved.rank for saved in facts.saves}
    last = {saved.rank: saved.step for saved in reversed(facts.saves)}
    steps = sorted({saved.step for saved in facts.saves}, reverse=True)
    if ranks - last.keys():
        with database.read() as connection:
            last |= recent.last_steps(connection, launch.key, sorted(ranks - last.keys()), _FAR_BACK)
    behind = laggards(ranks, last, steps[0])
    if not behind:
        if not launch.layout.covers(ranks, launch.world_size):
            who = f"only {of_ranks(ranks)} of {launch.world_size} save"
            detail = f"{who}, and their files do not replace those of all other ranks"
            hint = "give every rank a ModelCheckpoint and a registrar: what only these ranks save can never be restored"
            return facts.check("ranks", Status.WARNING, detail, hint)
        if len(ranks) == launch.world_size:
            who = "rank 0" if len(ranks) == 1 else f"all {len(ranks)} ranks"
            return facts.check("ranks", Status.OK, f"{who} saved step {steps[0]}")
        saved = f"of {launch.world_size} saved step {steps[0]}"
        serves, whose = ("its file serves", "its") if len(ranks) == 1 else ("their files serve", "their")
        detail = f"{of_ranks(ranks)} {saved}; {serves} the other ranks, {whose} replicas"
        return facts.check("ranks", Status.OK, detail)
    detail = f"{_behind(behind, facts.hosts)}; the newest save is step {steps[0]}"
    newest_at = max(saved.at for saved in facts.saves)
    worst = next(iter(behind))
    lacks_one = all(worst is not None and step <= worst for step in steps[1:])
    if lacks_one and not facts.ends and facts.now - newest_at < CLOCKS_DIFFER:
        return facts.check("ranks", Status.NOTE, detail, "they may be saving it now: ask again in a while")
    hint = "see the logs of these ranks and the room on their disks; they may hang"
    return facts.check("ranks", Status.WARNING, detail, hint)


def _behind(behind: Mapping[int | None, list[int]], hosts: dict[int, str]) -> str:
    """The ranks that lag, in words: grouped by their last step, with their hosts."""
    parts = []
    for step, ranks in behind.items():
        on = sorted({hosts[rank] for rank in ranks if rank in hosts})
        where = f" (on {some(on)})" if on else ""
        if step is None:
            last = f"{'is' if len(ranks) == 1 else 'are'} in none of the last saves ({_FAR_BACK} at most)"
        else:
            last = f"saved step {step} last"
        parts.append(f"{of_ranks(ranks)}{where} {last}")
    return "; ".join(parts)


def _clocks(facts: RunFacts) -> Check:
    """Check for dates in the future: they prove that the clock of the writer, or of this machine, is wrong."""
    dates = [(max(saved.at, moment(saved.mtime_ns or 0)), saved) for saved in facts.saves]
    newest, saved = max(dates, key=lambda each: each[0])
    if newest - facts.now <= CLOCKS_DIFFER:
        return facts.check("clocks", Status.OK, "nothing that was saved is dated in the future")
    host = facts.hosts.get(saved.rank) or f"rank {saved.rank}"
    detail = (
        f"the clock of {host} is at least {span(newest - facts.now)} ahead of this machine's: {saved.path} is dated so"
    )
    hint = (
        f"set the clocks by NTP: leases, the trash and signs of life bear a difference of {span(CLOCKS_DIFFER)} at most"
    )
    return facts.check("clocks", Status.PROBLEM, detail, hint)
