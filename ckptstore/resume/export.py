"""Writes a restore plan for other tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ckptstore.core.hints import Command
from ckptstore.disk.files import replace_text
from ckptstore.errors import CkptstoreError, RefusedError, UsageError
from ckptstore.outside import Path

if TYPE_CHECKING:
    from ckptstore.core.model import RestorePlan

NO_RANKS = "-1"


def restore_ranks(plan: RestorePlan | None) -> dict[str, str]:
    """RESTORE_RANKS, whose files are loaded, and RESTORE_RANKS_MAP, from the ranks that load to the rank loaded.

    For the fault tolerance controller (the MindX DL guide: `restore_exception_checkpoint`); "-1" and no group without
    a plan.
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


def paths(plan: RestorePlan) -> list[str]:
    """The file of each rank, of an iteration its directory, for one a line.

    Raises `RefusedError` if a path is more than a line.
    """
    found = [assignment.source.path for assignment in plan.ranks]
    if plan.in_parts:
        found = [path.rpartition("/")[0] for path in found]
    for path in found:
        if "\n" in path or "\r" in path:
            raise RefusedError(f"{path} is more than one line: its reader would take it for two", "use --json")
    return found


def write_meta(plan: RestorePlan, directory: Path) -> list[str]:
    """Write MindFormers' `meta.json` for every rank below `directory`; the paths written.

    Each is replaced in one step. Raises `UsageError` where the epoch is not known, `CkptstoreError` where a file
    cannot be written.
    """
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
        raise CkptstoreError(f"cannot write below {root} ({error.strerror})", "check its permissions") from None
    return list(metas)
