"""What a restart gets from Ray Train's checkpoint manager."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

from bench.cases.case import (
    KEEP,
    KILLED,
    LAUNCHES,
    NAME_LIES,
    NEWEST_CUT,
    RESTARTS,
    SAVES,
    Judged,
    cut,
    die,
    killed,
    left,
    main,
    went_on,
)
from bench.peers.ray import Ray


def _keeper(home: Path, saves: int = SAVES) -> Ray:
    keeper = Ray(home, synced=True)
    if saves:
        keeper.save(range(1, saves + 1))
    return keeper


def newest_cut(home: Path) -> Judged:
    keeper = _keeper(home)
    cut(home / "ray" / f"checkpoint_{SAVES:06d}" / "state.ckpt")
    return went_on(keeper.newest(), SAVES - 1, "it hands out the directory with the cut file")


def dying_prune(home: Path) -> None:
    """Killed after the list is written without the old ones, before the first of them is deleted."""
    with mock.patch("ray.train.v2._internal.execution.checkpoint.checkpoint_manager.delete_fs_path", die):
        Ray(home, synced=True).prune(KEEP)


def killed_between(home: Path) -> Judged:
    keeper = _keeper(home, 2 * KEEP)
    killed(dying_prune, home)
    keeper.prune(KEEP)
    return _what_is_left(home, keeper, "what is not in its list any more is never deleted")


def _what_is_left(home: Path, keeper: Ray, detail: str) -> Judged:
    known = sorted(keeper.steps())
    there = sorted(int(path.name.rpartition("_")[2]) for path in (home / "ray").glob("checkpoint_0*"))
    last = there[-1]
    orphans = [f"checkpoint_{step:06d}" for step in there if step not in known]
    return left(known, list(range(last - KEEP + 1, last + 1)), orphans, detail)


def restarts(home: Path) -> Judged:
    keeper = _keeper(home, 0)

    async def launch(first: int) -> None:
        manager = keeper.manager(KEEP)
        for step in range(first, first + SAVES):
            keeper.report(manager, step)

    for number in range(LAUNCHES):
        asyncio.run(launch(number * SAVES + 1))
    return _what_is_left(home, keeper, "it reads its list at a start")


def name_lies(home: Path) -> Judged:
    """The directories of two reports have names in another order."""
    keeper = _keeper(home)

    async def report() -> None:
        manager = keeper.manager()
        for name, step in ((9, 26), (4, 30)):
            keeper.report(manager, step, name=name)

    asyncio.run(report())
    return went_on(keeper.newest(), 30, "it takes what was reported last, and the step that it was told")


if __name__ == "__main__":
    main(
        {
            NEWEST_CUT: newest_cut,
            KILLED: killed_between,
            RESTARTS: restarts,
            NAME_LIES: name_lies,
        }
    )
