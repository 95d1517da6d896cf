"""Puts the launches that a scan found among those that the catalog has, and gives each a moment that says so."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING

from ckptstore.core.model import SCANNED, Content
from ckptstore.scan.launches import NEAR_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptstore.core.model import Launch
    from ckptstore.scan.found import ScannedLaunch

_TICK = timedelta(microseconds=1)


def in_order_of_time(launches: Iterable[ScannedLaunch], more: Iterable[ScannedLaunch]) -> list[ScannedLaunch]:
    """The launches in the order they have, and more of them among them by the time they began."""
    ordered = list(launches)
    for each in sorted(more, key=lambda launch: (launch.began, launch.id)):
        later = (place for place, other in enumerate(ordered) if other.began > each.began)
        ordered.insert(next(later, len(ordered)), each)
    return ordered


def in_order(
    known: Sequence[Launch], found: Sequence[ScannedLaunch], last_saved: Mapping[str, datetime] = MappingProxyType({})
) -> list[str]:
    """The ids of a run's launches, oldest first: those that the catalog knows in its order, new ones among them.

    Which of two launches that were registered is the newer one was settled when they were, and a clock that is ahead
    does not undo it. A new launch keeps its place among those it was found with, and else goes before the first that
    began later, or still saved when the new one's first file was written: launches of a run do not overlap, so it was
    not the later one. It may be no launch at all, but what a rank of that one saved. `last_saved` tells when known
    launches did.
    """
    ordered = [launch.id for launch in known]
    began = {launch.id: launch.created_at for launch in known} | {launch.id: launch.began for launch in found}
    shown = {launch.id for launch in found}
    saved_until = {launch: last + timedelta(microseconds=NEAR_NS / 1000) for launch, last in last_saved.items()}
    lowest = 0
    for place, launch in enumerate(found):
        if launch.id not in ordered:
            next_ones = {other.id for other in found[place + 1 :]}
            later = (
                at
                for at, each in enumerate(ordered)
                if at >= lowest
                and (
                    each in next_ones
                    or _is_later(began[each], launch.began)
                    or (each in saved_until and each not in shown and saved_until[each] >= launch.began)
                )
            )
            ordered.insert(next(later, len(ordered)), launch.id)
        lowest = max(lowest, ordered.index(launch.id) + 1)
    return ordered


def dated(
    known: Sequence[Launch], found: Sequence[ScannedLaunch], last_saved: Mapping[str, datetime] = MappingProxyType({})
) -> list[ScannedLaunch]:
    """The found launches, the new ones with a moment at which they sort as `in_order` has them: by it, then by id.

    It is that of the launch's first file where this one fits, else by microseconds the nearest that does. Known
    launches have theirs. Where those contradict the order, a new launch is before all that come after it.
    """
    order = in_order(known, found, last_saved)
    fixed = {launch.id: launch.created_at for launch in known}
    began = {launch.id: launch.began for launch in found if launch.id not in fixed}
    at = {launch: moment for launch, moment in fixed.items() if moment is not None}
    newest_known = least = datetime.min.replace(tzinfo=timezone.utc)
    for launch in order:
        if launch in began:
            at[launch] = least = max(began[launch], least + _TICK)
        else:
            least = newest_known = max(fixed[launch] or newest_known, newest_known)
    oldest_known = most = datetime.max.replace(tzinfo=timezone.utc)
    for launch in reversed(order):
        if launch in began:
            at[launch] = most = min(at[launch], most - _TICK)
        else:
            most = oldest_known = min(fixed[launch] or oldest_known, oldest_known)
    return [replace(launch, began=at.get(launch.id, launch.began)) for launch in found]


def at_the_time_of_others(
    known: Sequence[Launch], found: Sequence[ScannedLaunch], last_saved: Mapping[str, datetime]
) -> list[str]:
    """What a scan says of new launches that go before one that was registered and began earlier: it still saved."""
    place = {launch: at for at, launch in enumerate(in_order(known, found, last_saved))}
    ids = {launch.id for launch in known}
    registered = [launch for launch in known if not launch.id.startswith(SCANNED)]
    said = []
    for launch in found:
        if launch.id in ids or all(file.content is Content.PART for file in launch.files):
            continue
        later = [other for other in registered if place[other.id] > place[launch.id]]
        overlapping = [other.id for other in later if not _is_later(other.created_at, launch.began)]
        if overlapping:
            first = min(launch.files, key=lambda file: (file.global_step, file.path))
            said.append(
                f"{first.path} and what was saved with it, {len(launch.files)} in all, were written while launch "
                f"{overlapping[-1]} saved, and are in no record of it: they count as older than that launch; copies "
                "of its files are better kept elsewhere"
            )
    return said


def _is_later(moment: datetime | None, other: datetime) -> bool:
    return moment is not None and moment > other
