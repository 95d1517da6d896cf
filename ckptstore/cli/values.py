"""The JSON of each command; field names are fixed, scripts depend on them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.model import Checkpoint, Kind, Rejection, Resolution, Skipped
    from ckptstore.resume.history import LaunchRow
    from ckptstore.resume.overview import RunRow, SaveRow
    from ckptstore.retention.decide import Verdict
    from ckptstore.retention.gc import RunCollected
    from ckptstore.scan.plan import Scanned


def write(value: Any) -> None:
    """Print a value as JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    click.echo(text.encode("utf-8", "backslashreplace"))  # a path's bytes that are no text become JSON's own escapes


def report(value: Any, text: str, *, as_json: bool) -> None:
    """Print what a command has done: JSON for scripts, or a line for people."""
    from ckptstore.cli.terminal import line

    write(value) if as_json else line(text)


def _plain(value: Any) -> Any:
    """What JSON has no word for: moments are in UTC, to the second."""
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else dict(value)


_NULL_IF_EMPTY = ("quarantine", "doubt", "ending")


def fields(of: object, names: str) -> dict[str, Any]:
    """These attributes of a value, by their names."""
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
        **fields(row, "bytes restorable abandoned pinned tags began quarantine metrics grade doubt created_at"),
    }


def launch(row: LaunchRow) -> dict[str, Any]:
    """One launch."""
    told = row.launch
    return {
        "run": told.run,
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


def scanned(done: Scanned) -> dict[str, Any]:
    """What a scan found and did."""
    return {
        **fields(done, "run world_size"),
        "files": dict(sorted(done.counts.items())),
        "known": done.known,
        "from_journals": done.synced.records,
        **{name: [file(each) for each in getattr(done, name)] for name in ("adopted", "damaged", "missing")},
        "uncertain": [
            {**fields(each, "path best_guess reason contradicted"), "place_with": each.remedy or None}
            for each in done.uncertain
        ],
        "regraded": [file(each) for each in done.regraded],
        "skipped": reasons(done.skipped),
        "opaque": [fields(each, "path rank size modified") for each in done.opaque],
        "trash": [dict(each.__dict__) for each in done.trash],
        "warnings": done.warnings,
    }


def resolution(found: Resolution) -> dict[str, Any]:
    """A resolution: the plan, if there is one, and what was rejected."""
    from ckptstore.resume.unplaced import how_to_place  # it needs the catalog

    plan = found.plan
    of_plan = "global_step epoch step_in_epoch initial_epoch"
    return {
        "run": found.run,
        "restorable": plan is not None,
        "launch": plan.launch.id if plan else None,
        **(fields(plan, of_plan) if plan else dict.fromkeys(of_plan.split())),
        "layout": plan.launch.layout.to_json() if plan else None,
        "metrics": plan.metrics if plan else {},
        "ranks": [
            {
                "rank": assignment.rank,
                "source_rank": assignment.source.rank,
                **fields(assignment.source, "kind path size strategy_file"),
            }
            for assignment in (plan.ranks if plan else ())
        ],
        **(fields(plan, "grade doubt") if plan else {"grade": None, "doubt": None}),
        "rejected": [_rejection(rejection) for rejection in found.rejections],
        "unplaced": [
            {**fields(each, "path best_guess reason"), "place_with": str(how_to_place(found.run, each))}
            for each in found.unplaced
        ],
    }


def collected(outcome: RunCollected) -> dict[str, Any]:
    """The plan of a gc, and what was done of it."""
    plan, done = outcome.plan, outcome.done
    if plan is None:
        return {"run": outcome.run, "applied": False}
    return {
        "run": plan.run,
        "applied": done is not None,
        "keep": [_verdict(verdict) for verdict in plan.decision.keep],
        "remove": [{**_verdict(verdict), **fields(verdict.state, "files bytes")} for verdict in plan.decision.remove],
        "debris": [{**fields(each, "path reason"), "bytes": each.size} for each in plan.debris],
        "bytes_freed": plan.bytes_freed if done is None else done.bytes,
        "unknown": reasons(plan.unknown),
        "policy": plan.policy.to_json(),
        "refused": outcome.error.message if outcome.error else None,
        "skipped": [{"state": each.path, "reason": each.reason} for each in (done.skipped if done else ())],
        "purged_bytes": done.purged_bytes if done else 0,
        "purge_after": done.purge_after if done else None,
        "trash": {
            "files": sum(each.files for each in outcome.waiting),
            "bytes": sum(each.bytes for each in outcome.waiting),
            "next_at": min((each.purge_after for each in outcome.waiting), default=None),
        },
        "troubles": reasons((*plan.unseen, *(done.troubles if done else ()))),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    state = verdict.state
    return {
        "launch": state.launch,
        "kind": _kinds(state.kinds),
        "global_step": state.global_step,
        "reasons": [fields(because, "rule detail") for because in verdict.reasons],
    }


def reasons(found: Iterable[Skipped]) -> list[dict[str, str]]:
    """Paths, each with what is said of it."""
    return [fields(each, "path reason") for each in found]


def _rejection(rejection: Rejection) -> dict[str, Any]:
    return {
        "launch": rejection.launch,
        "kind": _kinds(rejection.kinds),
        "global_step": rejection.global_step,
        "reasons": [fields(reason, "rank rule detail") for reason in rejection.reasons],
        "remedies": rejection.remedies,
    }


def _kinds(kinds: tuple[Kind, ...]) -> Kind | tuple[Kind, ...]:
    """Several where files of several kinds make up one state."""
    return kinds[0] if len(kinds) == 1 else kinds
