"""Hand a restore plan over to other tools."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.errors import CkptstoreError, RefusedError, UsageError
from ckptstore.resume import export_formats

if TYPE_CHECKING:
    from ckptstore.core.model import RestorePlan

restore_ranks = export_formats.restore_ranks


def paths(plan: RestorePlan) -> list[str]:
    """The file of each rank, for who reads one a line. Raises `RefusedError` where a path is more than a line."""
    found = [assignment.source.path for assignment in plan.ranks]
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
    metas = export_formats.meta_json(plan, str(root))
    if any(meta["last_epoch"] is None for meta in metas.values()):
        raise UsageError(
            f"the epoch of step {plan.global_step} is not known", "MindFormers needs it: give the steps of an epoch"
        )
    try:
        for path, meta in metas.items():
            _replace(Path(path), json.dumps(meta))
    except OSError as error:
        raise CkptstoreError(f"cannot write below {root} ({error.strerror})", "check its permissions") from None
    return list(metas)


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(draft).chmod(0o644)
    Path(draft).replace(path)
