"""Check of the clocks of the hosts that a run trains on: by what their ranks recorded of the same saves."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ckptstore.core.clocks import Stamp, behind_files, in_the_future, offsets
from ckptstore.core.words import count, span
from ckptstore.ops.checkup import Status
from ckptstore.ops.lease import CLOCKS_DIFFER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptstore.catalog.recent import Saved
    from ckptstore.core.clocks import Offset
    from ckptstore.ops.checkup import Check
    from ckptstore.ops.run_facts import RunFacts

_WORTH_A_NOTE = timedelta(minutes=1)
_HINT = f"set the clocks by NTP: leases, the grace of the trash and who counts as alive allow {span(CLOCKS_DIFFER)}"


def look(facts: RunFacts) -> Check:
    """How far clocks are apart: what records prove, and what they let us estimate."""
    hosts = facts.hosts
    stamps = [
        Stamp(hosts.get(saved.rank) or f"rank {saved.rank}", saved.step, saved.at, _written(saved))
        for saved in facts.saves
        if saved.size is not None
    ]
    proven = _farthest(in_the_future(stamps, facts.now), "{} is at least {} ahead of this machine")
    proven += _farthest(behind_files(stamps), "{} is at least {} behind the file system of its files")
    if proven and max(by for by, _ in proven) > CLOCKS_DIFFER:
        return facts.check("clocks", Status.PROBLEM, "; ".join(text for _, text in proven), _HINT)
    by = f"by the records of the last {count(len({stamp.step for stamp in stamps}), 'save', 'saves')}"
    apart = offsets(stamps)
    largest = max([timedelta(0), *(abs(offset.ahead) for offset in apart), *(by for by, _ in proven)])
    if largest > _WORTH_A_NOTE:
        status = Status.WARNING if largest > CLOCKS_DIFFER else Status.NOTE
        detail = "; ".join([*(text for _, text in proven), *_estimated(apart)])
        return facts.check("clocks", status, f"{detail}, {by}", f"{_HINT}; or that host records every save so late")
    clocks = len({stamp.clock for stamp in stamps})
    if apart:
        agree = f"{count(clocks, 'clock agrees', 'clocks agree')} to {span(largest)} or better, {by}"
    else:
        agree = "one host: nothing to compare" if clocks == 1 else "too few saves to compare the hosts by"
    return facts.check("clocks", Status.OK, agree)


def _farthest(found: Mapping[str, timedelta], text: str) -> list[tuple[timedelta, str]]:
    """By how much the clock that is farthest off is so, and that in words; nothing where none is."""
    clock = max(found, key=lambda each: found[each], default=None)
    return [] if clock is None else [(found[clock], text.format(clock, span(found[clock])))]


def _estimated(apart: Sequence[Offset]) -> list[str]:
    if not apart or abs(apart[0].ahead) <= _WORTH_A_NOTE:
        return []
    farthest = apart[0]
    side = "ahead of" if farthest.ahead > timedelta(0) else "behind"
    return [f"{farthest.clock} is about {span(abs(farthest.ahead))} {side} the other{'s' if len(apart) > 2 else ''}"]  # noqa: PLR2004


def _written(saved: Saved) -> datetime | None:
    """When the file was written that the record was made of; None where that is not known.

    A verification gives the record the time of the file that it found, as of one that came back from a copy.
    """
    is_of_another = saved.amended_at is not None and saved.amended_at > saved.at
    return (
        None if saved.mtime_ns is None or is_of_another else datetime.fromtimestamp(saved.mtime_ns / 1e9, timezone.utc)
    )
