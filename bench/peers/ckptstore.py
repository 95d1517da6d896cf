"""ckptstore, by its public names; the directory is known to it, as a registrar tells it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import ckptstore
from bench import files
from bench.peers.keeper import Keeper, serve
from ckptstore.core.model import Checkpoint, Kind
from ckptstore.ops.launch import RankLaunch
from ckptstore.ops.register import describe, measured

RUN = "run"


class Ckptstore(Keeper):
    """A catalog on SQLite beside the directory of the files."""

    def __init__(self, home: Path, *, synced: bool) -> None:
        super().__init__(home, synced=synced)
        self.directory = home / "ckpt"

    def _catalog(self) -> ckptstore.Catalog:
        return ckptstore.connect(str(self.home / "catalog.db"))

    def _started(self) -> RankLaunch:
        """A new launch, which goes on from the newest state."""
        launch = self._catalog().join(RUN)
        launch.resolve()
        launch.set_steps_per_epoch(files.STEPS_PER_EPOCH)
        source = str(self.directory)
        launch.add_source(source, kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=[])
        return launch

    def _write(self, step: int) -> Path:
        path = self.directory / files.name(step)
        files.write(path, step, synced=self.synced)
        return path

    def fill(self, count: int) -> None:
        self.directory.mkdir()
        launch = self._started()
        launch.record([self._record(launch, step) for step in range(1, count + 1)])

    def _record(self, launch: RankLaunch, step: int) -> Checkpoint:
        described = describe(launch.facts, rank=0, path=self._write(step), kind=Kind.PERIODIC, global_step=step)
        whole = measured(described)
        assert whole is not None
        return whole

    def save(self, steps: Sequence[int]) -> float:
        launch = self._started()
        begin = time.perf_counter()
        for step in steps:
            launch.register(self._write(step), global_step=step)
        return time.perf_counter() - begin

    def steps(self) -> list[int]:
        return [save.tally.global_step for save in self._catalog().saves(RUN)]

    def newest(self) -> int:
        found = self._catalog().resolve(RUN)
        assert found.plan is not None, found.rejections
        return found.plan.global_step

    def prune(self, keep: int) -> None:
        catalog = self._catalog()
        plan = catalog.plan_gc(RUN, ckptstore.Policy(keep_last=keep))
        done = catalog.execute(plan, now=True, allow_mass_delete=True)
        assert not done.troubles, done.troubles


if __name__ == "__main__":
    serve(Ckptstore)
