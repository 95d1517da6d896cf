"""Checks of tiers: whether each can be used, which files wait to be copied, and how many states are on nodes only."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from ckptstore.catalog import copies
from ckptstore.core.hints import Command
from ckptstore.core.text import count, size, span
from ckptstore.doctor.checkup import Check, Status
from ckptstore.objects.errors import StoreError
from ckptstore.objects.tiers import open_tier
from ckptstore.tiers import facts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.core.copies import Tier

_NAME = "tiers"
_LATE = timedelta(hours=1)
"""A file that is older and has no copy is a warning: perhaps `replicate --watch` does not run."""


def checks(database: Database) -> list[Check]:
    """Check each tier of level 1 and above: access, the right to write, its clock, its rules and versions."""
    return [check for tier in facts.declared(database) if tier.level > facts.NODE_LEVEL for check in _of_tier(tier)]


def _of_tier(tier: Tier) -> Iterator[Check]:
    try:
        findings = open_tier(tier.url).check()
    except StoreError as error:
        yield Check(_NAME, Status.PROBLEM, f"tier {tier.name}: {error.message}", error.hint)
        return
    for each in findings:
        status = Status.WARNING if each.is_fault else Status.NOTE
        yield Check(_NAME, status, f"tier {tier.name}: {each.what}", each.remedy)
    if not any(each.is_fault for each in findings):
        yield Check(_NAME, Status.OK, f"tier {tier.name} takes copies and gives them back")


def of_run(database: Database, run: str, run_id: int, now: datetime) -> list[Check]:
    """Check how much of a run waits to be copied to each tier, and how many of its states are on nodes only."""
    waiting = facts.waiting(database, run)
    if not waiting:
        return []
    with database.read() as connection:
        lacking, states = copies.only_on_nodes(connection, run_id)
        undigested = copies.undigested(connection, run_id)
    found = [_waiting(run, tier, left, now) for tier, left in waiting.items() if left.files]
    if lacking:
        detail = f"{lacking} of {count(states, 'state', 'states')} {'is' if lacking == 1 else 'are'} on nodes only"
        remedy = ""
        if found:
            remedy = f"{Command('replicate', run)} copies them"
        elif undigested:
            detail += f": {count(undigested, 'file has', 'files have')} no recorded digest, and cannot be copied yet"
            remedy = f"{Command('verify', run, '--digest')} records it, then {Command('replicate', run)} copies them"
        else:
            detail += ", and nothing waits to be copied: gc removed the copies, or such files are never copied"
        found.append(Check(_NAME, Status.NOTE, detail, remedy, run=run))
    if states and not found:
        found.append(Check(_NAME, Status.OK, f"each of {count(states, 'state', 'states')} is in a tier", run=run))
    return found


def _waiting(run: str, tier: Tier, left: copies.Backlog, now: datetime) -> Check:
    since = now - left.oldest if left.oldest is not None else timedelta()
    what = f"{count(left.files, 'file', 'files')}, {size(left.size)}, not copied to {tier.name}"
    detail = f"{what}; the oldest was saved {span(since)} ago"
    if since < _LATE:
        return Check(_NAME, Status.NOTE, detail, run=run)
    return Check(_NAME, Status.WARNING, detail, f"on each node: {Command('replicate', '--watch')}", run=run)
