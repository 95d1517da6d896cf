"""Orbax `CheckpointManager`: each save a directory with a JSON item, committed as Orbax commits; it syncs nothing."""

from __future__ import annotations

import os
import shutil
import time
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import LatestN

from bench import files
from bench.peers.keeper import Keeper, serve


def state(step: int) -> Any:
    """The same bytes that the others write to a file, as JSON can hold them."""
    return ocp.args.Composite(state=ocp.args.JsonSave({"step": step, "bytes": b64encode(files.content(step)).decode()}))


class Orbax(Keeper):
    """A root directory, as its documentation recommends for many steps: nothing is read of each step at the start."""

    def manager(self, keep: int | None = None) -> ocp.CheckpointManager:
        """Opened; deletes all but the newest `keep` at its next save, if given."""
        options = ocp.CheckpointManagerOptions(
            enable_async_checkpointing=False,
            lightweight_initialize=True,
            preservation_policy=LatestN(n=keep) if keep else None,
        )
        return ocp.CheckpointManager(self.home / "orbax", options=options, item_names=("state",))

    def fill(self, count: int) -> None:
        with self.manager() as manager:
            manager.save(1, args=state(1))
        first = self.home / "orbax" / "1"
        for step in range(2, count + 1):
            shutil.copytree(first, first.with_name(str(step)))

    def save(self, steps: Sequence[int]) -> float:
        with self.manager() as manager:
            begin = time.perf_counter()
            for step in steps:
                assert manager.save(step, args=state(step))
            return time.perf_counter() - begin

    def steps(self) -> list[int]:
        with self.manager() as manager:
            return list(manager.all_steps(read=True))

    def newest(self) -> int:
        with self.manager() as manager:
            step = manager.latest_step()
        assert step is not None
        return int(step)

    def prune(self, keep: int) -> None:
        """It deletes when it saves: one more."""
        with self.manager(keep) as manager:
            assert manager.save(manager.latest_step() + 1, args=state(1))


if __name__ == "__main__":
    serve(Orbax)
