"""Rows of lists, and resolutions, as dicts: the JSON of the command line.

The names of its fields are fixed, since scripts depend on them.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.model import Checkpoint, Kind, Rejection, Resolution, Skipped, Unplaced
    from ckptstore.resume.history import LaunchRow
    from ckptstore.resume.overview import RunRow, SaveRow

_NULL_IF_EMPTY = ("quarantine", "doubt", "ending")


def fields(of: object, names: str) -> dict[str, Any]:
    """The attributes of a value with these names, which spaces separate. Some become None if they are empty."""
    return {name: getattr(of, name) or None if name in _NULL_IF_EMPTY else getattr(of, name) for name in names.split()}


def run(row: RunRow) -> dict[str, Any]:
    """One run."""
    last, restorable = row.last, row.newest_restorable
    return {
        **fields(row, "run status launches launches_last_day"),
        "last_step": last.global_step if last else None,
        "last_kind": last.kind if last else None,
        **fields(row, "bytes trash_bytes"),
        "restorable_step": restorable.global_step if restorable else None,
        "restorable_kind": restorable.kind if restorable else None,
        "restorable_created_at": restorable.created_at if restorable else None,
    }


def save(row: SaveRow) -> dict[str, Any]:
    """One save."""
    return {
        "run": row.run,
        "launch": row.launch.id,
        **fields(row.tally, "kind global_step epoch step_in_epoch ranks"),
        "world_size": row.launch.world_size,
        **fields(row, "bytes restorable abandoned pinned tags began tiers quarantine metrics grade doubt created_at"),
    }


def launch(row: LaunchRow) -> dict[str, Any]:
    """One launch."""
    told = row.launch
    return {
        "run": row.run,
        "launch": told.id,
        "began_at": told.created_at,
        "hosts": row.hosts,
        **fields(told, "world_size decided"),
        "from_launch": told.parent,
        "from_step": told.parent_step,
        "start_step": told.start_step,
        "initial": told.initial._asdict() if told.initial else None,
        "went_back": told.branched,
        "passed_over": [fields(each, "launch global_step rule detail") for each in row.passed],
        **fields(row, "last_step ending heard_at"),
        "seconds": None if row.ran is None else round(row.ran.total_seconds()),
    }


def file(checkpoint: Checkpoint) -> dict[str, Any]:
    """One file."""
    return {
        **fields(checkpoint, "run launch kind global_step optimizer_step epoch step_in_epoch rank path size digest"),
        **fields(checkpoint, "format strategy_file state quarantine metrics grade doubt"),
        "timing": checkpoint.timing._asdict() if checkpoint.timing else None,
        "created_at": checkpoint.created_at,
    }


def unplaced(found: Unplaced) -> dict[str, Any]:
    """One file without a place in its run."""
    return fields(found, "path size best_guess reason")


def resolution(found: Resolution) -> dict[str, Any]:
    """A resolution: the plan, if there is one, and the reasons against newer states."""
    from ckptstore.resume.remedies import how_to_place

    plan = found.plan
    of_plan = "global_step epoch step_in_epoch initial_epoch"
    return {
        "run": found.run,
        "restorable": plan is not None,
        "why_none": found.why_none or None,
        "launch": plan.launch.id if plan else None,
        **(fields(plan, of_plan) if plan else dict.fromkeys(of_plan.split())),
        "layout": plan.launch.layout.to_json() if plan else None,
        "metrics": plan.metrics if plan else {},
        "ranks": found.to_dicts(),
        **(fields(plan, "grade doubt") if plan else {"grade": None, "doubt": None}),
        "to_fetch": _to_fetch(found),
        "rejected": [_rejection(rejection) for rejection in found.rejections],
        "unplaced": [
            {
                **fields(each, "path best_guess reason"),
                "place_with": str(how_to_place(found.run, each)) if each.remedy else None,
            }
            for each in found.unplaced
        ],
    }


def _to_fetch(found: Resolution) -> dict[str, Any]:
    """The files that must be fetched from tiers, and the newest state that needs no fetching."""
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


def reasons(found: Iterable[Skipped]) -> list[dict[str, str]]:
    """Paths, each with its reason."""
    return [fields(each, "path reason") for each in found]


def kinds_of(kinds: tuple[Kind, ...]) -> Kind | tuple[Kind, ...]:
    """One kind by itself; several where a state has files of several kinds."""
    return kinds[0] if len(kinds) == 1 else kinds


def plain(value: Any) -> Any:
    """Convert a value that JSON cannot hold: a time becomes text in UTC to the second, a mapping a dict."""
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else dict(value)
