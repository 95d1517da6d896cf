"""Checks of what is left behind: flags that ask for an exit, trash, a gc that died. Nothing of it is changed."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from ckptstore.core.words import count, size, span
from ckptstore.ops.checkup import Status
from ckptstore.ops.lease import CLOCKS_DIFFER
from ckptstore.ops.owner import is_dead, shown
from ckptstore.ops.run_facts import roots
from ckptstore.storage import exit_flags

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from ckptstore.ops.checkup import Check
    from ckptstore.ops.run_facts import RunFacts
    from ckptstore.storage.exit_flags import Flag


def look(facts: RunFacts) -> Iterator[Check]:
    """Flags, trash, and who works on the run's files."""
    yield from _flags(facts)
    yield _trash(facts)
    if facts.lock is not None:
        yield _lock(facts)


def _flags(facts: RunFacts) -> Iterator[Check]:
    flags = {flag for seen in facts.around.values() for note in seen.notes if (flag := exit_flags.noted(note))}
    paths = {flag.path for flag in flags}
    near = [flag for root in roots(facts.directories) for flag in exit_flags.flags_in(root)]
    flags |= {flag for flag in near if flag.path not in paths}
    up = {flag: since for flag in flags if (since := exit_flags.up_since(flag)) is not None}
    for flag, since in sorted(up.items(), key=lambda each: each[0].path):
        yield _up(facts, flag, since)
    if flags and not up:
        yield facts.check("exit_flag", Status.OK, f"{count(len(flags), 'flag', 'flags')}, none up")


def _up(facts: RunFacts, flag: Flag, since: datetime) -> Check:
    """The launch that it ended leaves it as it is, and the next one would exit after its first step (domain §5)."""
    begun = facts.newest.created_at if facts.newest else None
    asks = f"{flag.path} asks for an exit ({flag.key}: 1, set {span(facts.now - since)} ago)"
    if facts.is_alive and begun is not None and since > begun:
        return facts.check("exit_flag", Status.NOTE, f"{asks}: the launch that runs is about to end")
    if facts.is_alive:
        detail = f"{asks}, from before the launch that runs: a registrar ignores it until it is written again"
        return facts.check("exit_flag", Status.NOTE, detail, f'put it back: {{"{flag.key}": 0}}')
    hint = f'put {{"{flag.key}": 0}} into it before the next start; without a registrar that would exit at once'
    return facts.check("exit_flag", Status.WARNING, asks, hint)


def _trash(facts: RunFacts) -> Check:
    files, taken = sum(each.files for each in facts.trash), sum(each.bytes for each in facts.trash)
    if not files:
        return facts.check("trash", Status.OK, "empty")
    detail = f"{count(files, 'file', 'files')}, {size(taken)}"
    if facts.lock is None and not all(each.ended for each in facts.trash):
        detail += "; a gc was interrupted"
        return facts.check("trash", Status.NOTE, detail, "the next gc, undo or purge goes on with it")
    due = [each for each in facts.trash if each.purge_after < facts.now - CLOCKS_DIFFER]
    if due:
        detail += f"; {size(sum(each.bytes for each in due))} of it for longer than the grace"
        hint = f"ckptstore purge {quote(facts.run)}; the next gc does it too"
        return facts.check("trash", Status.NOTE, detail, hint)
    left = span(min(each.purge_after for each in facts.trash) - facts.now)
    return facts.check("trash", Status.OK, f"{detail}; it can be brought back for {left} more")


def _lock(facts: RunFacts) -> Check:
    lock = facts.lock
    assert lock is not None  # noqa: S101 — asked for only where there is one
    if is_dead(lock.owner) or lock.expires_at < facts.now:
        detail = f"{shown(lock.owner)} died, or lost touch, at work on the run's files"
        return facts.check("gc_lock", Status.NOTE, detail, "the next gc, undo or purge takes over")
    detail = f"{shown(lock.owner)} is at work on the run's files"
    return facts.check("gc_lock", Status.NOTE, detail, "gc, undo and purge are refused meanwhile")
