"""Histories of states as retention sees them, and policies, for the golden table."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from ckptstore.core.model import Kind
from ckptstore.retention.decide import StateFacts
from ckptstore.retention.policy import Policy

BEGAN = datetime(2026, 3, 1, 9, 0, tzinfo=timezone.utc)  # a Sunday
NOW = BEGAN + timedelta(days=12)


def facts(step: int, *, launch: int = 1, hours: float | None = None, kind: Kind = Kind.PERIODIC) -> StateFacts:
    """A restorable state; saved `hours` after the beginning (None: one hour a step)."""
    return StateFacts(
        launch=f"L{launch}",
        launch_order=launch,
        global_step=step,
        kinds=(kind,),
        created_at=BEGAN + timedelta(hours=step if hours is None else hours),
        bytes=1000,
        files=2,
        metrics={"loss": 1 / step} if step else {},
    )


def linear() -> list[StateFacts]:
    """A save every 7 hours, for twelve days."""
    return [facts(step) for step in range(7, 288, 7)]


def relaunched() -> list[StateFacts]:
    """Four launches, each ended by a fault; each goes on from where the one before ended."""
    return [
        *(facts(step, launch=1) for step in (10, 20, 30)),
        facts(34, launch=1, kind=Kind.DYING_GASP),
        *(facts(step, launch=2) for step in (40, 50)),
        replace(facts(55, launch=2), kinds=(Kind.PERIODIC, Kind.TTP), parent_of=("L3",)),
        facts(60, launch=3),
        facts(61, launch=3, kind=Kind.GRACEFUL_EXIT),
        facts(70, launch=4),
    ]


def abandoned() -> list[StateFacts]:
    """From step 20 of the first launch the run went on twice; what the first two did afterwards was given up."""
    return [
        *(facts(step, launch=1) for step in (10, 20)),
        *(replace(facts(step, launch=1), branch="L1") for step in (30, 40)),
        *(replace(facts(step, launch=2), branch="L2") for step in (21, 31)),
        replace(facts(41, launch=2), branch="L2", problem="rank 1: missing_file"),
        *(facts(step, launch=3, hours=100 + step) for step in (25, 35, 45)),
    ]


def damaged() -> list[StateFacts]:
    """The newest is cut, another cannot be looked at, one was never finished."""
    return [
        replace(facts(0), problem="untrained"),
        *(facts(step) for step in (10, 20, 30)),
        replace(facts(40), problem="rank 0: size_mismatch"),
        replace(facts(50), problem="rank 1: missing_file", doubt="/data/rank_1 is not there"),
        facts(60),
        replace(facts(70), problem="rank 1: in_progress", is_written=True),
        replace(facts(80), problem="rank 1: size_mismatch"),
    ]


def hopeless() -> list[StateFacts]:
    """Nothing can be restored."""
    return [replace(facts(step), problem="rank 0: missing_file") for step in (10, 20, 30)]


def marked() -> list[StateFacts]:
    """Marks of people and of launches on old states."""
    return [
        facts(5),
        replace(facts(10), pinned=True),
        replace(facts(20), tags=("best", "paper")),
        replace(facts(30), held_by=("L2",), parent_of=("L2",)),
        replace(facts(40), weights_only=True),
        replace(facts(45), problem="rank 0: digest_mismatch", pinned=True),
        *(facts(step) for step in (50, 60, 70)),
    ]


POLICIES = {
    "last 3": Policy(keep_last=3),
    "last 1, floor 1": Policy(keep_last=1, floor=1),
    "every 25 steps": Policy(keep_every=25),
    "within 3 days": Policy(keep_within=timedelta(days=3)),
    "within 1 hour, floor 0": Policy(keep_within=timedelta(hours=1), floor=0),
    "hourly 4": Policy(keep_hourly=4),
    "daily 3, weekly 2": Policy(keep_daily=3, keep_weekly=2),
    "best 2 by least loss": Policy(keep_best=2, metric="loss", mode="min"),
    "best 2 by most loss": Policy(keep_best=2, metric="loss", mode="max"),
    "best 2 of what nobody measured": Policy(keep_best=2, metric="accuracy", mode="max"),
    "kinds": Policy(keep_kind={Kind.TTP: 1, Kind.DYING_GASP: 2}),
    "parents": Policy(keep_last=1, keep_parents=True),
    "no branches": Policy(keep_last=1, drop_branches=True),
    "all of it": Policy(keep_last=2, keep_every=30, keep_within=timedelta(days=2), keep_daily=2, floor=4),
}
CASES = {
    linear: (
        "every 25 steps",
        "within 3 days",
        "within 1 hour, floor 0",
        "hourly 4",
        "daily 3, weekly 2",
        "best 2 by most loss",
    ),
    relaunched: ("last 1, floor 1", "within 1 hour, floor 0", "kinds", "parents"),
    abandoned: ("last 3", "daily 3, weekly 2", "no branches"),
    damaged: ("last 3", "best 2 by least loss"),
    hopeless: ("last 3",),
    marked: ("best 2 of what nobody measured", "all of it"),
}
"""The histories, each with the policies for which the golden table has what becomes of it."""
