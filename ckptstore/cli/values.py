"""The JSON of each command; field names are fixed, scripts depend on them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ckptstore.resume.dicts import fields, file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.model import Kind, Rejection, Resolution, Skipped
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
        "ranks": found.to_dicts(),
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
