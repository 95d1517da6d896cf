"""A job of several ranks whose files are made by hand: what the catalog needs to be told, and nothing of MindSpore."""

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ckptstore.api import Catalog
from ckptstore.catalog import reads
from ckptstore.core.events import TrainingEnded
from ckptstore.core.model import Checkpoint, Kind, Launch
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes

STEPS_PER_EPOCH = 10


class Job:
    """Launches of one run, in one directory."""

    def __init__(
        self, catalog: Catalog, directory: Path, world_size: int = 2, layout: str | None = None, run: str = "run"
    ) -> None:
        self.catalog = catalog
        self.directory = directory
        self.world_size = world_size
        self.layout = layout
        self.run = run
        self.launches = 0

    def start(self, *, resume: bool = True) -> list[RankLaunch]:
        """All ranks join a new launch, and ask where to start."""
        self.launches += 1
        ranks = [
            self.catalog.join(
                self.run, rank=rank, world_size=self.world_size, launch_id=f"L{self.launches}", layout=self.layout
            )
            for rank in range(self.world_size)
        ]
        for launch in ranks:
            launch.set_steps_per_epoch(STEPS_PER_EPOCH)
            if resume:
                launch.resolve()
        return ranks

    def begin(self, *, resume: bool = True) -> list[RankLaunch]:
        """A new launch, whose ranks say where they save."""
        ranks = self.start(resume=resume)
        for launch in ranks:
            self.announce(launch)
        return ranks

    def folder(self, rank: int) -> Path:
        return self.directory / f"rank_{rank}"

    def write(self, launch: RankLaunch, step: int, *, name: str | None = None) -> Path:
        """A file as ModelCheckpoint would name it in this launch, registered by nobody."""
        prefix = "net" if launch.id == "L1" else f"net_{int(launch.id[1:]) - 1}"
        epoch, place = (step - 1) // STEPS_PER_EPOCH + 1, (step - 1) % STEPS_PER_EPOCH + 1
        return ckpt_bytes.write(self.folder(launch.rank) / (name or f"{prefix}-{epoch}_{place}.ckpt"), step, step)

    def save(self, ranks: list[RankLaunch], *steps: int) -> list[Checkpoint]:
        """Every rank saves and registers, at each of these steps; returns the files of the last one."""
        files: list[Checkpoint] = []
        for step in steps:
            files = [rank.register(self.write(rank, step), global_step=step, optimizer_step=step) for rank in ranks]
        return files

    def announce(self, launch: RankLaunch) -> None:
        """What the registrar says when training begins: where the rank saves."""
        prefix = "net" if launch.id == "L1" else f"net_{int(launch.id[1:]) - 1}"
        folder = str(self.folder(launch.rank))
        launch.add_source(folder, kind=Kind.PERIODIC, prefix=prefix, breakpoint_prefix="net", names_before=())


def set_ending(
    launch: RankLaunch, step: int, optimizer_step: int | None, error: str | None, *, quarantine: str = ""
) -> None:
    """What the registrar says when training has ended on a rank."""
    now = datetime.now(timezone.utc)
    ended = TrainingEnded(launch.run, launch.id, launch.rank, step, optimizer_step, error, quarantine, now)
    launch.recorder.record([ended])


def known_of(launch: RankLaunch) -> Launch:
    """What the catalog knows of a launch by now."""
    with launch.database.read() as connection:
        found = reads.launch(connection, launch.key)
    assert found is not None
    return found


def newest(catalog: Catalog, **asked: Any) -> int | None:
    """The step that the run goes on from, if there is one."""
    plan = catalog.resolve("run", **asked).plan
    return plan and plan.global_step


def started(catalog: Catalog, directory: Path, *steps: int, **asked: Any) -> tuple[Job, list[RankLaunch]]:
    """A job, and the ranks of its first launch, which goes on and has saved these steps."""
    job = Job(catalog, directory, **asked)
    ranks = job.start()
    job.save(ranks, *steps)
    return job, ranks


def begun(catalog: Catalog, directory: Path, *steps: int, **asked: Any) -> tuple[Job, list[RankLaunch]]:
    """The same, of a launch whose ranks say where they save."""
    job = Job(catalog, directory, **asked)
    ranks = job.begin()
    job.save(ranks, *steps)
    return job, ranks
