"""Ray Train's checkpoint manager (v2): its list is one JSON file, written anew at each report; it syncs nothing.

Its internal interface, which Ray's own controller calls: there is none for programs without a cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["RAY_TRAIN_V2_ENABLED"] = "1"

from ray.train import Checkpoint, CheckpointConfig
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.context import StorageContext
from ray.train.v2._internal.execution.training_report import _TrainingReport

from bench import files
from bench.peers.keeper import Keeper, serve

logging.getLogger("ray").setLevel(logging.WARNING)


class Ray(Keeper):
    """A storage directory with one directory a report."""

    def __init__(self, home: Path, *, synced: bool) -> None:
        super().__init__(home, synced=synced)
        self.storage = StorageContext(storage_path=str(home), experiment_dir_name="ray")

    def manager(self, keep: int | None = None) -> CheckpointManager:
        """Opened, as the controller does at a start: it reads its list, and looks for every directory."""
        return CheckpointManager(CheckpointConfig(num_to_keep=keep), self.storage)

    def report(self, manager: CheckpointManager, step: int, name: int | None = None) -> None:
        """Write one save and report it, by default under its step; `manager` deletes what it is not to keep."""
        directory = Path(
            self.storage.build_checkpoint_path_from_name(f"checkpoint_{step if name is None else name:06d}")
        )
        directory.mkdir(parents=True)
        files.write(directory / "state.ckpt", step, synced=self.synced)
        checkpoint = Checkpoint(path=str(directory), filesystem=self.storage.storage_filesystem)
        manager.register_checkpoint(_TrainingReport(checkpoint=checkpoint, metrics={"step": step}, validation=False))

    def fill(self, count: int) -> None:
        """The list is written once, with the last report, instead of once a report."""

        async def fill() -> None:
            manager = self.manager()
            manager._write_state_to_storage = lambda: None
            for step in range(1, count + 1):
                if step == count:
                    del manager._write_state_to_storage
                self.report(manager, step)

        asyncio.run(fill())

    def save(self, steps: Sequence[int]) -> float:
        async def save() -> float:
            manager = self.manager()
            begin = time.perf_counter()
            for step in steps:
                self.report(manager, step)
            return time.perf_counter() - begin

        return asyncio.run(save())

    def steps(self) -> list[int]:
        async def steps() -> list[int]:
            manager = self.manager()
            found = await manager.get_all_reported_checkpoints(manager._current_report_index)
            return [each.metrics["step"] for each in found]

        return asyncio.run(steps())

    def newest(self) -> int:
        async def newest() -> int:
            return int(self.manager().latest_checkpoint_result.metrics["step"])

        return asyncio.run(newest())

    def prune(self, keep: int) -> None:
        """It deletes when it is told of a save: one more."""

        async def prune() -> None:
            manager = self.manager(keep)
            self.report(manager, int(manager.latest_checkpoint_result.metrics["step"]) + 1)

        asyncio.run(prune())


if __name__ == "__main__":
    serve(Ray)
