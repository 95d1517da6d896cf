"""A restore plan in the words of other tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptstore.core.model import RestorePlan

NO_RANKS = "-1"


def restore_ranks(plan: RestorePlan | None) -> dict[str, str]:
    """The variables of the fault tolerance controller: RESTORE_RANKS, and RESTORE_RANKS_MAP from group to rank.

    The ranks whose files are loaded, and for each of them the ranks that load it; "-1" and no group where there is
    no plan (seed 003: `restore_exception_checkpoint`).
    """
    if plan is None:
        return {"RESTORE_RANKS": NO_RANKS, "RESTORE_RANKS_MAP": "{}"}
    loads: dict[int, list[int]] = {}
    for assignment in plan.ranks:
        loads.setdefault(assignment.source.rank, []).append(assignment.rank)
    groups = {",".join(map(str, ranks)): source for source, ranks in sorted(loads.items())}
    return {"RESTORE_RANKS": ",".join(map(str, sorted(loads))), "RESTORE_RANKS_MAP": json.dumps(groups)}


def meta_json(plan: RestorePlan, directory: str) -> dict[str, dict[str, Any]]:
    """MindFormers' `meta.json` of every rank, by the path it is read from below a `checkpoint` directory.

    MindFormers joins the file's name to the rank's directory: a file that is elsewhere is named with its whole path.
    """
    metas: dict[str, dict[str, Any]] = {}
    for assignment in plan.ranks:
        home = f"{directory.rstrip('/')}/rank_{assignment.rank}"
        path = assignment.source.path
        metas[f"{home}/meta.json"] = {
            "last_epoch": assignment.source.epoch,
            "last_step": assignment.source.step_in_epoch,
            "last_ckpt_file": path.removeprefix(f"{home}/") if path.rpartition("/")[0] == home else path,
        }
    return metas
