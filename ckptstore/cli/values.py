"""The JSON of each command; field names are fixed, scripts depend on them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from ckptstore.core.model import Checkpoint, Kind, Rejection, Resolution, Skipped
    from ckptstore.resume.history import LaunchRow
    from ckptstore.resume.overview import RunRow, SaveRow
    from ckptstore.retention.decide import Verdict
    from ckptstore.retention.gc import RunCollected
    from ckptstore.retention.purge import Purged
    from ckptstore.retention.undo import Undone
    from ckptstore.scan.plan import Scanned


def write(value: Any) -> None:
    """Print a value as JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(text.encode("utf-8", "backslashreplace"))  # a path's bytes that are no text become JSON's own escapes


def run(row: RunRow) -> dict[str, Any]:
    """One run."""
    last, restorable = row.last, row.newest_restorable
    return {
        "run": row.run,
        "status": row.status,
        "launches": row.launches,
        "launches_last_day": row.launches_last_day,
        "last_step": last.tally.global_step if last else None,
        "last_kind": last.tally.kind.value if last else None,
        "bytes": row.bytes,
        "trash_bytes": row.trash_bytes,
        "restorable_step": restorable.tally.global_step if restorable else None,
        "restorable_kind": restorable.tally.kind.value if restorable else None,
        "restorable_created_at": _moment(restorable.tally.created_at) if restorable else None,
    }


def save(row: SaveRow) -> dict[str, Any]:
    """One save."""
    tally = row.tally
    return {
        "run": row.run,
        "launch": row.launch.id,
        "kind": tally.kind.value,
        "global_step": tally.global_step,
        "epoch": tally.epoch,
        "step_in_epoch": tally.step_in_epoch,
        "ranks": tally.ranks,
        "world_size": row.launch.world_size,
        "bytes": tally.bytes,
        "restorable": row.restorable,
        "abandoned": row.abandoned,
        "pinned": row.pinned,
        "tags": list(row.tags),
        "quarantine": row.quarantine or None,
        "metrics": dict(row.metrics),
        "grade": row.grade.value if row.grade else None,
        "doubt": row.doubt or None,
        "created_at": _moment(tally.created_at),
    }


def launch(row: LaunchRow) -> dict[str, Any]:
    """One launch."""
    told = row.launch
    return {
        "run": told.run,
        "launch": told.id,
        "began_at": _moment(told.created_at),
        "hosts": list(row.hosts),
        "world_size": told.world_size,
        "decided": told.decided,
        "from_launch": told.parent,
        "from_step": told.parent_step,
        "start_step": told.start_step,
        "went_back": told.branched,
        "passed_over": [
            {"launch": each.launch, "global_step": each.global_step, "rule": each.rule.value, "detail": each.detail}
            for each in row.passed
        ],
        "last_step": row.last_step,
        "ending": row.ending or None,
        "heard_at": _moment(row.heard_at),
        "seconds": None if row.ran is None else round(row.ran.total_seconds()),
    }


def file(checkpoint: Checkpoint) -> dict[str, Any]:
    """One file."""
    return {
        "run": checkpoint.run,
        "launch": checkpoint.launch,
        "kind": checkpoint.kind.value,
        "global_step": checkpoint.global_step,
        "optimizer_step": checkpoint.optimizer_step,
        "epoch": checkpoint.epoch,
        "step_in_epoch": checkpoint.step_in_epoch,
        "rank": checkpoint.rank,
        "path": checkpoint.path,
        "size": checkpoint.size,
        "digest": checkpoint.digest,
        "format": checkpoint.format,
        "strategy_file": checkpoint.strategy_file,
        "state": checkpoint.state.value,
        "quarantine": checkpoint.quarantine or None,
        "metrics": dict(checkpoint.metrics),
        "grade": checkpoint.grade.value if checkpoint.grade else None,
        "doubt": checkpoint.doubt or None,
        "timing": checkpoint.timing._asdict() if checkpoint.timing else None,
        "created_at": _moment(checkpoint.created_at),
    }


def scanned(done: Scanned) -> dict[str, Any]:
    """What a scan found and did."""
    return {
        "run": done.run,
        "world_size": done.world_size,
        "files": dict(sorted(done.counts.items())),
        "known": done.known,
        "from_journals": done.synced.records,
        "adopted": [file(each) for each in done.adopted],
        "damaged": [file(each) for each in done.damaged],
        "missing": [file(each) for each in done.missing],
        "uncertain": [
            {
                "path": each.path,
                "best_guess": each.best_guess,
                "reason": each.reason,
                "contradicted": each.contradicted,
                "place_with": each.remedy or None,
            }
            for each in done.uncertain
        ],
        "regraded": [file(each) for each in done.regraded],
        "skipped": reasons(done.skipped),
        "opaque": [
            {"path": each.path, "rank": each.rank, "size": each.size, "modified": _moment(each.modified)}
            for each in done.opaque
        ],
        "trash": [dict(each.__dict__) for each in done.trash],
        "warnings": list(done.warnings),
    }


def resolution(found: Resolution) -> dict[str, Any]:
    """A resolution: the plan, if there is one, and what was rejected."""
    from ckptstore.resume.unplaced import how_to_place  # it needs the catalog

    plan = found.plan
    return {
        "run": found.run,
        "restorable": plan is not None,
        "launch": plan.launch.id if plan else None,
        "global_step": plan.global_step if plan else None,
        "epoch": plan.epoch if plan else None,
        "step_in_epoch": plan.step_in_epoch if plan else None,
        "initial_epoch": plan.initial_epoch if plan else None,
        "layout": plan.launch.layout.to_json() if plan else None,
        "ranks": [
            {
                "rank": assignment.rank,
                "source_rank": assignment.source.rank,
                "kind": assignment.source.kind.value,
                "path": assignment.source.path,
                "size": assignment.source.size,
                "strategy_file": assignment.source.strategy_file,
            }
            for assignment in (plan.ranks if plan else ())
        ],
        "grade": plan.grade.value if plan and plan.grade else None,
        "doubt": plan.doubt or None if plan else None,
        "rejected": [_rejection(rejection) for rejection in found.rejections],
        "unplaced": [
            {
                "path": each.path,
                "best_guess": each.best_guess,
                "reason": each.reason,
                "place_with": str(how_to_place(found.run, each)),
            }
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
        "remove": [
            {**_verdict(verdict), "files": verdict.state.files, "bytes": verdict.state.bytes}
            for verdict in plan.decision.remove
        ],
        "debris": [{"path": each.path, "reason": each.reason, "bytes": each.bytes} for each in plan.debris],
        "bytes_freed": plan.bytes_freed if done is None else done.bytes,
        "unknown": reasons(plan.unknown),
        "policy": plan.policy.to_json(),
        "refused": outcome.error.message if outcome.error else None,
        "skipped": [{"state": each.path, "reason": each.reason} for each in (done.skipped if done else ())],
        "purged_bytes": done.purged_bytes if done else 0,
        "purge_after": _moment(done.purge_after) if done else None,
        "trash": {
            "files": sum(each.files for each in outcome.waiting),
            "bytes": sum(each.bytes for each in outcome.waiting),
            "next_at": _moment(min((each.purge_after for each in outcome.waiting), default=None)),
        },
        "troubles": reasons((*plan.unseen, *(done.troubles if done else ()))),
    }


def undone(done: Undone) -> dict[str, Any]:
    """What undo brought back."""
    return {
        "run": done.run,
        "files": done.files,
        "bytes": done.bytes,
        "gone": done.gone,
        "troubles": reasons(done.troubles),
    }


def purged(done: Purged) -> dict[str, Any]:
    """What purge deleted, and what waits in the trash."""
    return {
        "run": done.run,
        "files": done.files,
        "bytes": done.bytes,
        "waiting": done.waiting,
        "waiting_bytes": done.waiting_bytes,
        "next_at": _moment(done.next_at),
        "troubles": reasons(done.troubles),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    state = verdict.state
    return {
        "launch": state.launch,
        "kind": _kinds(state.kinds),
        "global_step": state.global_step,
        "reasons": [{"rule": because.rule.value, "detail": because.detail} for because in verdict.reasons],
    }


def reasons(found: Iterable[Skipped]) -> list[dict[str, str]]:
    """Paths, each with what is said of it."""
    return [{"path": each.path, "reason": each.reason} for each in found]


def _rejection(rejection: Rejection) -> dict[str, Any]:
    return {
        "launch": rejection.launch,
        "kind": _kinds(rejection.kinds),
        "global_step": rejection.global_step,
        "reasons": [
            {"rank": reason.rank, "rule": reason.rule.value, "detail": reason.detail} for reason in rejection.reasons
        ],
        "remedies": list(rejection.remedies),
    }


def _kinds(kinds: tuple[Kind, ...]) -> str | list[str]:
    """A list where files of several kinds make up one state."""
    names = [kind.value for kind in kinds]
    return names[0] if len(names) == 1 else names


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
