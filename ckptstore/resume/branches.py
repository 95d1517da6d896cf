"""On which branch of a run's history each save is: the lineage that is being continued, or one that was abandoned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.resume.lineage import lineage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ckptstore.core.model import Launch


def branches(
    launches: Sequence[Launch], first_saves: Mapping[str, int | None], steps: Mapping[str, Collection[int]]
) -> dict[tuple[str, int], str]:
    """The branch of each save (launch, step): "" for the lineage, else the newest launch of the branch.

    `first_saves` are as `lineage` takes them; `steps` are those to place, by launch. A save is on the newest branch
    that leads over it; an untrained network is on none.
    """
    in_order = sorted(launches, key=lambda launch: launch.order)
    found: dict[tuple[str, int], str] = {}
    name = ""
    while in_order:
        tip = in_order[-1]
        if not name or any((tip.id, step) not in found for step in steps.get(tip.id, ())):
            for segment in lineage(in_order, first_saves):
                for step in steps.get(segment.launch.id, ()):
                    if segment.last_step is None or step <= segment.last_step:
                        found.setdefault((segment.launch.id, step), name)
        in_order.pop()
        name = in_order[-1].id if in_order else name
    return found
