"""A resolution as a dict, with all that speaks against newer states: the JSON of `resolve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptstore.resume.dicts import fields, kinds_of
from ckptstore.resume.remedies import how_to_place

if TYPE_CHECKING:
    from ckptstore.core.model import Rejection, Resolution


def resolution(found: Resolution) -> dict[str, Any]:
    """A resolution: the plan, if there is one, and the rejected states."""
    plan = found.plan
    of_plan = "global_step epoch step_in_epoch initial_epoch"
    return {
        "run": found.run,
        "restorable": plan is not None,
        "launch": plan.launch.id if plan else None,
        **(fields(plan, of_plan) if plan else dict.fromkeys(of_plan.split())),
        "layout": plan.launch.layout.to_json() if plan else None,
        "metrics": plan.metrics if plan else {},
        "ranks": found.to_dicts(),
        **(fields(plan, "grade doubt") if plan else {"grade": None, "doubt": None}),
        "to_fetch": _to_fetch(found),
        "rejected": [_rejection(rejection) for rejection in found.rejections],
        "unplaced": [
            {**fields(each, "path best_guess reason"), "place_with": str(how_to_place(found.run, each))}
            for each in found.unplaced
        ],
    }


def _to_fetch(found: Resolution) -> dict[str, Any]:
    """The files that must be fetched from tiers, and the state that needs none."""
    plan, older = found.plan, found.without_fetching
    sources = {each.source.id: each.source for each in plan.ranks} if plan else {}
    return {
        "bytes": plan.bytes_to_fetch if plan else 0,
        "files": [
            {"path": sources[file].path, "tier": some[0].tier.name, "key": some[0].key, "bytes": some[0].all_bytes}
            for file, some in (plan.copies.items() if plan else ())
            if file in sources
        ],
        "without": fields(older, "global_step") | {"launch": older.launch.id} if older else None,
    }


def _rejection(rejection: Rejection) -> dict[str, Any]:
    return {
        "launch": rejection.launch,
        "kind": kinds_of(rejection.kinds),
        "global_step": rejection.global_step,
        "reasons": [fields(reason, "rank rule detail") for reason in rejection.reasons],
        "remedies": rejection.remedies,
    }
