"""Writes a restore plan for other tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.naming import parse_name
from ckptstore.disk.files import replace_text
from ckptstore.errors import CkptstoreError, RefusedError, UsageError, reason_of
from ckptstore.outside import Path

if TYPE_CHECKING:
    from ckptstore.core.model import RestorePlan

NO_RANKS = "-1"


def restore_ranks(plan: RestorePlan | None) -> dict[str, str]:
    """RESTORE_RANKS and RESTORE_RANKS_MAP for the fault tolerance controller.

    The first lists the ranks whose files are loaded, the second maps each group of ranks to the rank whose file they
    load (the MindX DL guide: `restore_exception_checkpoint`). Without a plan they are "-1" and an empty map.
    """
    if plan is None:
        return {"RESTORE_RANKS": NO_RANKS, "RESTORE_RANKS_MAP": "{}"}
    loads = grouped((assignment.source.rank, assignment.rank) for assignment in plan.ranks)
    groups = {",".join(map(str, ranks)): source for source, ranks in sorted(loads.items())}
    return {"RESTORE_RANKS": ",".join(map(str, sorted(loads))), "RESTORE_RANKS_MAP": json.dumps(groups)}


def meta_json(plan: RestorePlan, directory: str) -> dict[str, dict[str, Any]]:
    """The content of MindFormers' `meta.json` of every rank, by its path below the `checkpoint` directory.

    MindFormers joins the checkpoint's name to the rank's directory: a file in another directory has its whole path.
    """
    metas: dict[str, dict[str, Any]] = {}
    for assignment in plan.ranks:
        home = f"{directory.rstrip('/')}/rank_{assignment.rank}"
        path = assignment.source.path
        named = parse_name(path.rpartition("/")[2]) or assignment.source  # MindFormers makes the name of the numbers
        metas[f"{home}/meta.json"] = {
            "last_epoch": named.epoch,
            "last_step": named.step_in_epoch,
            "last_ckpt_file": path.removeprefix(f"{home}/") if path.rpartition("/")[0] == home else path,
        }
    return metas


def paths(plan: RestorePlan) -> list[str]:
    """The path of each rank's file, for output with one path a line; of an iteration the path of its directory.

    Raises `RefusedError` if a path contains a line break.
    """
    found = [assignment.source.path for assignment in plan.ranks]
    if plan.in_parts:
        found = [path.rpartition("/")[0] for path in found]
    for path in found:
        if "\n" in path or "\r" in path:
            raise RefusedError(f"{path} is more than one line: its reader would take it for two", "use --json")
    return found


def write_meta(plan: RestorePlan, directory: Path) -> list[str]:
    """Write MindFormers' `meta.json` for every rank below `directory`, and return the paths written.

    Each file is replaced atomically. Raises `RefusedError` for an iteration, `UsageError` if the epoch is not known,
    `CkptstoreError` if a file cannot be written.
    """
    if plan.in_parts:
        raise RefusedError(
            f"step {plan.global_step} is a directory of an iteration, and meta.json names files of format 1.0",
            f"to see the directory: {Command('resolve', plan.launch.run, '--format', 'paths')}",
        )
    root = directory.absolute()
    metas = meta_json(plan, str(root))
    if any(meta["last_epoch"] is None for meta in metas.values()):
        raise UsageError(
            f"the epoch of step {plan.global_step} is not known, and MindFormers needs it",
            str(Command("scan", "DIRECTORY", "--run", plan.launch.run, "--steps-per-epoch", "E")),
        )
    try:
        for path, meta in metas.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            replace_text(Path(path), json.dumps(meta))
    except OSError as error:
        raise CkptstoreError(f"cannot write below {root} ({reason_of(error)})", "check its permissions") from None
    return list(metas)
