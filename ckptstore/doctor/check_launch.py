"""Checks of a run's newest launch: whether it lives, and whether all its ranks save."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from ckptstore.catalog import recent
from ckptstore.core.lagging import is_overdue, laggards, usual_pause
from ckptstore.core.model import Kind
from ckptstore.core.words import of_ranks, some, span
from ckptstore.ops.checkup import Status
from ckptstore.ops.lease import CLOCKS_DIFFER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from ckptstore.catalog.engine import Database
    from ckptstore.core.lagging import Laggard
    from ckptstore.core.model import Launch
    from ckptstore.ops.checkup import Check
    from ckptstore.ops.run_facts import RunFacts

_FAR_BACK = 200
_FRUITLESS = 3
_AGAIN = "start the job again: it goes on from the newest state that can be restored"


def look(database: Database, facts: RunFacts) -> Iterator[Check]:
    """The launch, and its ranks."""
    yield _launch(facts)
    if facts.is_saving:
        yield _ranks(database, facts)


def _launch(facts: RunFacts) -> Check:
    newest = facts.newest
    if newest is None or facts.last_sign is None:
        return facts.check("launch", Status.NOTE, "no launch yet")
    fruitless = list(takewhile(lambda launch: launch.id not in facts.saved, reversed(facts.launches)))
    if len(fruitless) >= _FRUITLESS and not any(launch.branched for launch in fruitless):
        detail = f"the last {len(fruitless)} launches saved nothing"
        hint = "see their logs: they end before the first save, or are told to save too seldom"
        return facts.check("launch", Status.WARNING, detail, hint)
    if facts.ends:
        return _ended(facts, newest)
    if not facts.homes and newest.id not in facts.saved:
        return _not_begun(facts, newest)
    return _goes_on(facts, newest, facts.now - facts.last_sign)


def _goes_on(facts: RunFacts, newest: Launch, silent: timedelta) -> Check:
    """A launch that did not say that it ended, and was not heard of for so long."""
    if not facts.homes:
        detail = f"{newest.id}: only its files are known, the newest of {span(silent)} ago"
        return facts.check("launch", Status.OK, detail)
    if not facts.is_alive:
        detail = f"{newest.id} gave no sign of life for {span(silent)}: it was killed, or hangs"
        return facts.check("launch", Status.WARNING, detail, _AGAIN)
    moments = list({saved.step: saved.at for saved in facts.saves}.values()) if facts.is_saving else []
    usual = usual_pause(moments)
    if usual is not None and is_overdue(moments, facts.now):
        detail = f"{newest.id} has not saved for {span(facts.now - max(moments))}, and did every {span(usual)} before"
        return facts.check("launch", Status.WARNING, detail, f"see whether it hangs; if it does, {_AGAIN}")
    return facts.check("launch", Status.OK, f"{newest.id} runs as far as is known; heard of {span(silent)} ago")


def _not_begun(facts: RunFacts, newest: Launch) -> Check:
    if newest.branched:
        detail = f"the run was taken back to step {newest.parent_step} of {newest.parent}, and has not gone on yet"
        return facts.check("launch", Status.NOTE, detail)
    since = facts.now - (newest.created_at or facts.now)
    detail = f"{newest.id} joined {span(since)} ago and has not begun to train"
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
        return facts.check("launch", Status.WARNING, detail, f"see the log of {by}; then {_AGAIN}")
    if silent:
        recently = facts.now - max(end.at for end in facts.ends) < CLOCKS_DIFFER
        hint = "" if recently else f"see whether they hang; {_AGAIN}"
        status = Status.NOTE if recently else Status.WARNING
        return facts.check("launch", status, f"{detail}; {of_ranks(silent)} said nothing", hint)
    return facts.check("launch", Status.OK, detail)


def _ranks(database: Database, facts: RunFacts) -> Check:
    launch = facts.saving
    assert launch is not None  # noqa: S101 — asked for only where there is one
    ranks = {home.rank for home in facts.homes if home.kind is Kind.PERIODIC} | {saved.rank for saved in facts.saves}
    last = {saved.rank: saved.step for saved in reversed(facts.saves)}
    steps = sorted({saved.step for saved in facts.saves}, reverse=True)
    if ranks - last.keys():
        with database.read() as connection:
            last |= recent.last_steps(connection, launch.id, sorted(ranks - last.keys()), _FAR_BACK)
            steps = recent.newest_steps(connection, launch.id, _FAR_BACK)
    behind = laggards(ranks, last, steps)
    if not behind:
        if not launch.layout.covers(ranks, launch.world_size):
            detail = f"only {of_ranks(ranks)} of {launch.world_size} save, and no replica of all others is among them"
            hint = "give every rank its ModelCheckpoint and registrar: what they save can never be restored"
            return facts.check("ranks", Status.WARNING, detail, hint)
        who = "all ranks" if len(ranks) == launch.world_size else of_ranks(ranks)
        return facts.check("ranks", Status.OK, f"{who} of {launch.world_size} saved step {steps[0]}")
    detail = f"{_behind(behind, facts.hosts)}; the newest save is step {steps[0]}"
    newest_at = max(saved.at for saved in facts.saves)
    if behind[0].lacks == 1 and not facts.ends and facts.now - newest_at < CLOCKS_DIFFER:
        return facts.check("ranks", Status.NOTE, detail, "they may be saving it now: ask again in a while")
    hint = "see the logs of these ranks and the room on their disks; they may hang"
    return facts.check("ranks", Status.WARNING, detail, hint)


def _behind(behind: list[Laggard], hosts: dict[int, str]) -> str:
    """The ranks that lag, those with the same last step together, and on which hosts they run."""
    by_step: dict[int | None, list[int]] = {}
    for each in behind:
        by_step.setdefault(each.last_step, []).append(each.rank)
    parts = []
    for step, ranks in by_step.items():
        on = sorted({hosts[rank] for rank in ranks if rank in hosts})
        where = f" (on {some(on)})" if on else ""
        if step is None:
            last = f"{'is' if len(ranks) == 1 else 'are'} in none of the last {_FAR_BACK} saves"
        else:
            last = f"saved step {step} last"
        parts.append(f"{of_ranks(ranks)}{where} {last}")
    return "; ".join(parts)
