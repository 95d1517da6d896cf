"""Check of the journals of a run: whether the catalog has what they say."""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from ckptstore.core.words import count, some
from ckptstore.ops.checkup import Status
from ckptstore.storage import journal
from ckptstore.storage.claims import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.ops.checkup import Check
    from ckptstore.ops.run_facts import RunFacts
    from ckptstore.storage.journal import Contents

_MOST_BYTES = 16 << 20


def look(facts: RunFacts, *, is_away: bool) -> Check:
    """What is in the journals and not in the catalog; `is_away`: that cannot be asked which of it it has."""
    sizes = {path: length for seen in facts.around.values() for path, length in seen.journals.items()}
    hidden = {f"{directory}/{FOLDER}": seen.hidden for directory, seen in facts.around.items() if seen.hidden}
    what = count(len(sizes), "journal", "journals")
    if is_away:
        hint = "once the catalog can be used it takes up what it lacks by itself; or: ckptstore sync"
        return _but(hidden, facts.check("journals", Status.NOTE, f"{what}, by which this page was made", hint))
    begins = {path: facts.journals.get(path, 0) for path in sorted(sizes)}
    tails = {path: begin if sizes[path] > begin else 0 for path, begin in begins.items() if sizes[path] != begin}
    read, is_all = journal.read_tails(tails, _MOST_BYTES)
    if is_all:
        hidden |= dict.fromkeys(sorted(tails.keys() - read.keys()), "no permission, or the disk fails")
    return _but(hidden, _judged(facts, what, sizes, read, is_all=is_all))


def _but(hidden: Mapping[str, str], check: Check) -> Check:
    """The check, with what could not be read: nobody knows whether the catalog has what is there."""
    if not hidden:
        return check
    reason = next(iter(hidden.values()))
    detail = f"what is in {some(list(hidden))} cannot be read ({reason}); else {check.detail}"
    hint = "let this user read it, or ask as one who may" + (f"; {check.hint}" if check.hint else "")
    return replace(check, status=Status.WARNING, detail=detail, hint=hint)


def _judged(
    facts: RunFacts, what: str, sizes: Mapping[str, int], read: Mapping[str, Contents], *, is_all: bool
) -> Check:
    new = {path: contents for path, contents in read.items() if contents.entries}
    records = sum(len(contents.entries) for contents in new.values())
    cut = sum(contents.spoiled for contents in read.values())
    cut += sum(contents.end < sizes[path] for path, contents in read.items())
    spoiled = f"{count(cut, 'line is', 'lines are')} torn, or of another program" if cut else ""
    newer = sum(contents.newer for contents in read.values())
    if newer:
        detail = f"{what}; {count(newer, 'record', 'records')} of a newer ckptstore"
        return facts.check("journals", Status.WARNING, detail, "update ckptstore here, then: ckptstore sync")
    if records or not is_all:
        least = "" if is_all else "at least "
        where = some(sorted({journal.directory_of(path) for path in new}))
        detail = f"{least}{count(records, 'record', 'records')} not in the catalog, in {where}"
        detail += f"; {spoiled}" if spoiled else ""
        return facts.check("journals", Status.WARNING, detail, f"ckptstore sync {quote(facts.run)}")
    if spoiled:
        hint = "nothing: what was not written to its end was never said to be kept"
        return facts.check("journals", Status.NOTE, f"{what}, all in the catalog; {spoiled}", hint)
    return facts.check("journals", Status.OK, f"{what}, all in the catalog")
