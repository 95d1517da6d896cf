"""ckptstore, by its public names; the directory is known to it, as a registrar tells it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import ckptstore
from bench import files
from bench.peers.keeper import Keeper, serve
from ckptstore.core.model import Kind
from ckptstore.training.rank_launch import RankLaunch

RUN = "run"


def announced(launch: RankLaunch, directory: Path) -> RankLaunch:
    """The launch, which has told what a registrar tells: where it saves, and the steps of an epoch."""
    launch.set_steps_per_epoch(files.STEPS_PER_EPOCH)
    launch.add_source(str(directory), kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=[])
    return launch


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
        return announced(launch, self.directory)

    def _write(self, step: int) -> Path:
        path = self.directory / files.name(step)
        files.write(path, step, synced=self.synced)
        return path

    def fill(self, count: int) -> None:
        self.directory.mkdir()
        self.save(range(1, count + 1))

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
