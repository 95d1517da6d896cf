"""What retention of DLRover's flash checkpoints leaves: `KeepLatestStepStrategy`."""

from __future__ import annotations

from pathlib import Path

from dlrover.python.common.storage import KeepLatestStepStrategy, PosixStorageWithDeletion

from bench.cases.case import KEEP, LAUNCHES, RESTARTS, SAVES, WRONG, Judged, left, main

TRACKER = "latest_checkpointed_iteration.txt"


def restarts(home: Path) -> Judged:
    """A new storage at every start, as the agent makes it; the tracker is written when a step's shards are done."""
    for launch in range(LAUNCHES):
        storage = PosixStorageWithDeletion(TRACKER, KeepLatestStepStrategy(KEEP, str(home)))
        for step in range(launch * SAVES + 1, (launch + 1) * SAVES + 1):
            (home / str(step)).mkdir()
            storage.write(b"state", str(home / str(step) / "state.pt"))
            storage.write(str(step), str(home / TRACKER))
            storage.commit(step, success=True)
    there = sorted(int(path.name) for path in home.iterdir() if path.is_dir())
    last = LAUNCHES * SAVES
    if there == list(range(last - KEEP + 1, last + 1)):
        return left(there, there, [], "")
    return Judged(WRONG, f"{len(there)} directories are left where {KEEP} were asked for: its list lives in memory")


if __name__ == "__main__":
    main({RESTARTS: restarts})
