"""The plan of a gc and its outcome as dicts: the JSON of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptstore.resume.dicts import fields, kinds_of, reasons

if TYPE_CHECKING:
    from ckptstore.retention.decide import Verdict
    from ckptstore.retention.execute import RunCollected
    from ckptstore.retention.in_tier import TierCollected, TierOutcome
    from ckptstore.retention.in_trash import Purged, Undone


def collected(outcome: RunCollected) -> dict[str, Any]:
    """The plan of a gc and its outcome."""
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
            "next_at": min((each.purged_from for each in outcome.waiting if each.files), default=None),
            "unmoved": sum(each.unmoved for each in outcome.waiting),
        },
        "troubles": reasons((*plan.unseen, *(done.troubles if done else ()))),
    }


def in_tier(outcome: TierOutcome) -> dict[str, Any]:
    """The plan of a gc of the copies in a tier, and the result if it was carried out."""
    plan, done = outcome.plan, outcome.done
    if plan is None:
        return {"run": outcome.run, "applied": False}
    decision = plan.decision
    return {
        "run": plan.run,
        "tier": plan.tier.name,
        "applied": done is not None,
        "keep": [_verdict(verdict) for verdict in decision.keep],
        "remove": [{**_verdict(verdict), **fields(verdict.state, "files bytes")} for verdict in decision.remove],
        "bytes_freed": decision.bytes_freed if done is None else done.bytes,
        "policy": plan.policy.to_json(),
        "refused": outcome.error.message if outcome.error else None,
        "skipped": [{"state": each.path, "reason": each.reason} for each in (done.skipped if done else ())],
        "purged_bytes": done.purged_bytes if done else 0,
        "troubles": reasons(done.troubles if done else ()),
    }


def of_copies(done: TierCollected) -> dict[str, Any]:
    """The result of a change of copies in a tier."""
    return {
        **fields(done, "run tier copies bytes purged purged_bytes"),
        "skipped": [{"state": each.path, "reason": each.reason} for each in done.skipped],
        "troubles": reasons(done.troubles),
    }


def undone(done: Undone) -> dict[str, Any]:
    """The files that undo restored, and those that it could not."""
    return {**fields(done, "run files bytes gone passed_over"), "troubles": reasons(done.troubles)}


def purged(done: Purged) -> dict[str, Any]:
    """The files that purge deleted, and those that wait."""
    return {**fields(done, "run files bytes waiting waiting_bytes next_at"), "troubles": reasons(done.troubles)}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    state = verdict.state
    return {
        "launch": state.launch,
        "kind": kinds_of(state.kinds),
        "global_step": state.global_step,
        "reasons": [fields(because, "rule detail") for because in verdict.reasons],
    }
