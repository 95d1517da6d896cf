"""Lines of journals as any user may write them, and a journal of his with them."""

import os
from pathlib import Path
from typing import Any

import pytest

from ckptstore.journal import jsonl

every_wanted = pytest.mark.parametrize(
    ("wanted", "settled"), [("trash", True), ("trash", False), ("home", False), ("gone", False)]
)
AT = "2026-01-01T00:00:00+00:00"


def started(run: str, **more: Any) -> dict[str, Any]:
    told = {"t": "launch", "run": run, "id": "L1", "world_size": 1, "layout": "data_parallel", "steps_per_epoch": 10}
    return {**told, "batch_size": None, "shards": None, "created_at": AT, **more}


def recorded(path: Path, home: Path, step: int, run: str, **more: Any) -> dict[str, Any]:
    facts = {"size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns, "path": str(path.relative_to(home))}
    told = {"t": "file", "run": run, "launch": "L1", "global_step": step, "rank": 0, "kind": "periodic", "at": AT}
    return {**told, "content": "full", "state": "complete", "format": "ckpt", **facts, **more}


def policy(run: str) -> dict[str, Any]:
    return {"t": "policy", "run": run, "rules": {"keep_last": 1, "floor": 1}, "at": AT}


def removal(
    run: str, wanted: str, *files: tuple[str, int, int, str, str], settled: bool = False, at: str = AT
) -> dict[str, Any]:
    told = {"t": "removal", "run": run, "collection": "gc1", "wanted": wanted, "settled": settled, "at": at}
    return {**told, "files": [list(file) for file in files]}


def write(directory: Path, user: int, *lines: dict[str, Any]) -> None:
    """The journal of a user, and all that is in the directory itself."""
    folder = directory / ".ckptstore"
    folder.mkdir(exist_ok=True)
    journal = folder / "rank_0.jsonl"
    with journal.open("ab") as file:
        file.write(b"".join(map(jsonl.encode, lines)))
    for path in (directory, folder, journal, *directory.glob("*.ckpt")):
        os.chown(path, user, user)
