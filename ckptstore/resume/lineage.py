"""Which saves belong to the history that the run continues, and which to an abandoned branch."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from ckptstore.core.model import SCANNED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ckptstore.core.model import Launch

_order = attrgetter("order")


@dataclass(frozen=True)
class Segment:
    """The saves of one launch that belong to the lineage: those up to and including `last_step` (None: all)."""

    launch: Launch
    last_step: int | None = None

    def has(self, step: int) -> bool:
        """Whether a save of this step belongs to the lineage."""
        return self.last_step is None or step <= self.last_step


def lineage(
    launches: Sequence[Launch], first_saves: Mapping[str, int | None], *, of: str | None = None
) -> tuple[Segment, ...]:
    """The history that leads to the newest launch, or to the one whose id is `of`, newest first.

    Its own saves, then its parent's up to the step it resumed from, and so on. `first_saves` maps a launch that
    has saves to the step of its first one (None: it finished no save).

    - A launch that finished no save does not abandon newer saves: a file that it could not see may be back. This does
      not hold if it was asked to go back, or if a later launch resumed from it: then it did save, even if no file is
      left.
    - A launch that saved, but never asked ckptstore where to start, was restored by other means. It continues the
      launch before it from just before its own first save. A launch that a scan found may be part of the launch before
      it: a state of that launch at the same step stays in the lineage.
    - A foreign launch is left out and has no lineage: ckptstore cannot continue from it.
    """
    by_id = {launch.id: launch for launch in launches}
    segments: list[Segment] = []
    remaining = sorted(launches, key=_order)
    if of is not None:
        if by_id[of].foreign:
            return ()
        remaining = [launch for launch in remaining if launch.order <= by_id[of].order]
    last_step: int | None = None
    resumed_from: str | None = None
    while remaining:
        launch = remaining.pop()
        if launch.foreign:
            continue
        if launch.id in first_saves:
            segments.append(Segment(launch, last_step))
        first = first_saves.get(launch.id)
        if first is None and not launch.branched and launch.id != resumed_from:
            continue
        if launch.decided:
            if launch.parent is None or launch.parent not in by_id:
                break
            resumed_from = launch.parent
            parent = by_id[launch.parent]
            del remaining[bisect_right(remaining, parent.order, key=_order) :]
            last_step = _lower(_in_parents_steps(launch, last_step), launch.parent_step)
        elif first is not None:
            last_step = _lower(last_step, first if launch.id.startswith(SCANNED) else first - 1)
    return tuple(segments)


def branches(
    launches: Sequence[Launch], first_saves: Mapping[str, int | None], steps: Mapping[str, Collection[int]]
) -> dict[tuple[str, int], str]:
    """The newest branch that contains each save, by (launch, step): "" is the lineage, else its newest launch's id.

    `first_saves` is as for `lineage`; `steps` has the steps of interest by launch.
    """
    in_order = sorted(launches, key=_order)
    found: dict[tuple[str, int], str] = {}
    name = ""
    while in_order:
        tip = in_order[-1]
        if not name or any((tip.id, step) not in found for step in steps.get(tip.id, ())):
            for segment in lineage(in_order, first_saves):
                for step in steps.get(segment.launch.id, ()):
                    if segment.has(step):
                        found.setdefault((segment.launch.id, step), name)
        in_order.pop()
        name = in_order[-1].id if in_order else name
    return found


def _in_parents_steps(launch: Launch, step: int | None) -> int | None:
    """Convert a step of a launch into steps of its parent, which may have another size. Rounds down."""
    start, before = launch.start_step, launch.parent_step
    if step is None or not start or not before:
        return step
    return step * before // start


def _lower(one: int | None, other: int | None) -> int | None:
    known = [step for step in (one, other) if step is not None]
    return min(known, default=None)
