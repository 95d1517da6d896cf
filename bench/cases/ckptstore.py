"""What a restart gets from ckptstore."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from bench import files
from bench.cases.case import (
    KEEP,
    KILLED,
    LAUNCHES,
    NAME_LIES,
    NEWEST_CUT,
    RANK_MISSING,
    RESTARTS,
    SAVES,
    Judged,
    cut,
    die,
    killed,
    left,
    main,
    refused,
    went_on,
)
from bench.peers.ckptstore import RUN, Ckptstore
from ckptstore import Catalog, Policy, connect

RANKS = 4


def _keeper(home: Path, saves: int = SAVES) -> Ckptstore:
    keeper = Ckptstore(home, synced=True)
    keeper.fill(saves)
    return keeper


def _restarted(catalog: Catalog, expected: int) -> Judged:
    found = catalog.resolve(RUN)
    reasons = [reason.detail for rejection in found.rejections for reason in rejection.reasons]
    if found.plan is None:
        return refused(LookupError("nothing restorable"), "; ".join(reasons))
    return went_on(found.plan.global_step, expected, f"passed over: {reasons[0]}" if reasons else "nothing passed over")


def newest_cut(home: Path) -> Judged:
    keeper = _keeper(home)
    cut(keeper.directory / files.name(SAVES))
    return _restarted(connect(str(home / "catalog.db")), SAVES - 1)


def dying_gc(home: Path) -> None:
    """Killed before the first file is touched: the catalog has marked them all."""
    with mock.patch.object(os, "unlink", die), mock.patch.object(os, "rename", die):
        Ckptstore(home, synced=True).prune(KEEP)


def killed_between(home: Path) -> Judged:
    keeper = _keeper(home, 2 * KEEP)
    killed(dying_gc, home)
    keeper.prune(KEEP)
    return _what_is_left(keeper, list(range(KEEP + 1, 2 * KEEP + 1)), "the next gc ended what was begun")


def _what_is_left(keeper: Ckptstore, expected: list[int], detail: str) -> Judged:
    known = {save.tally.global_step for save in connect(str(keeper.home / "catalog.db")).saves(RUN)}
    paths = {file.path for file in connect(str(keeper.home / "catalog.db")).files(RUN) if file.global_step in known}
    orphans = [path.name for path in keeper.directory.rglob("*.ckpt") if str(path) not in paths]
    return left(sorted(known), expected, orphans, detail)


def restarts(home: Path) -> Judged:
    keeper = _keeper(home, 0)
    for launch in range(LAUNCHES):
        keeper.save(range(launch * SAVES + 1, (launch + 1) * SAVES + 1))
        catalog = connect(str(home / "catalog.db"))
        catalog.execute(catalog.plan_gc(RUN, Policy(keep_last=KEEP)), now=True, allow_mass_delete=True)
    last = LAUNCHES * SAVES
    return _what_is_left(keeper, list(range(last - KEEP + 1, last + 1)), "each launch kept three")


def rank_missing(home: Path) -> Judged:
    catalog = connect(str(home / "catalog.db"))
    for rank in range(RANKS):
        launch = catalog.join(RUN, rank=rank, world_size=RANKS, launch_id="L1")
        folder = home / f"rank_{rank}"
        folder.mkdir()
        for step in range(1, SAVES + (rank < RANKS - 1)):
            files.write(folder / files.name(step), step, synced=True)
            launch.register(folder / files.name(step), global_step=step)
    return _restarted(catalog, SAVES - 1)


def name_lies(home: Path) -> Judged:
    """MindSpore names by its own count, which begins again in the middle of an epoch after a resume."""
    folder = home / "ckpt"
    folder.mkdir()
    catalog = connect(str(home / "catalog.db"))
    launch = catalog.join(RUN)
    for name, step in (("net_1-3_9.ckpt", 26), ("net_1-3_3.ckpt", 30)):
        files.write(folder / name, step, synced=True)
        launch.register(folder / name, global_step=step)
    return _restarted(catalog, 30)


if __name__ == "__main__":
    main(
        {
            NEWEST_CUT: newest_cut,
            KILLED: killed_between,
            RESTARTS: restarts,
            RANK_MISSING: rank_missing,
            NAME_LIES: name_lies,
        }
    )
