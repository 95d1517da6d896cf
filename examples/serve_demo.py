"""A catalog with a made-up history of several runs, and `ckptstore serve` on it: `make serve-demo`.

No MindSpore is needed: `launch.save` writes small files. The history is in a temporary directory, which is deleted at
the end.
"""

from __future__ import annotations

import math
import random
import struct
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import ckptstore
from ckptstore.core.events import TrainingEnded
from ckptstore.retention import stored_policy

COMMAND = Path(sys.executable).with_name("ckptstore")


class Job:
    """One run: its launches, each of several ranks."""

    def __init__(self, catalog: ckptstore.Catalog, home: Path, run: str, ranks: int, seed: int) -> None:
        self.catalog, self.home, self.run, self.ranks = catalog, home / run.replace("/", "-"), run, ranks
        self.chance = random.Random(seed)  # noqa: S311 — for numbers that look like those of a training
        self.launches = 0

    def start(self) -> list[ckptstore.RankLaunch]:
        """Every rank joins a new launch, and asks where to start."""
        self.launches += 1
        joined = [
            self.catalog.join(self.run, rank=rank, world_size=self.ranks, launch_id=f"{self.launches}")
            for rank in range(self.ranks)
        ]
        for launch in joined:
            launch.set_steps_per_epoch(100)
            launch.resolve()
        return joined

    def save(self, launches: list[ckptstore.RankLaunch], *steps: int) -> None:
        """Every rank saves at each of these steps."""
        for step in steps:
            loss = 2.5 * math.exp(-step / 900) + 0.2 + self.chance.uniform(-0.03, 0.03)
            for launch in launches:
                launch.save(
                    lambda path: Path(path).write_bytes(struct.pack("<4096d", *(self.chance.random(),) * 4096)),
                    global_step=step,
                    directory=self.home / f"rank_{launch.rank}",
                    metrics={"loss": loss, "accuracy": 1 - loss / 3},
                )

    def end(self, launches: list[ckptstore.RankLaunch], step: int) -> None:
        """Every rank records that the training is over."""
        for launch in launches:
            now = datetime.now(timezone.utc)
            launch.recorder.record([TrainingEnded(launch.run, launch.id, launch.rank, step, step, None, "", now)])


def make(catalog: ckptstore.Catalog, home: Path) -> None:
    """Make healthy runs, and runs that need a person."""
    llm = Job(catalog, home, "llama-7b", 8, 1)
    llm.save(llm.start(), *range(100, 1300, 100))
    llm.save(llm.start(), *range(1300, 1900, 100))
    next((llm.home / "rank_3").glob("step-1800*")).unlink()
    next((llm.home / "rank_5").glob("step-1700*")).write_bytes(b"cut")
    catalog.verify("llama-7b")
    catalog.tag("llama-7b", 1000, "before-the-long-context")

    vision = Job(catalog, home, "vision/resnet50", 4, 2)
    vision.save(vision.start(), *range(50, 1050, 50))
    catalog.pin("vision/resnet50", 500)
    catalog.execute(catalog.plan_gc("vision/resnet50", ckptstore.Policy(keep_last=5, keep_every=250)))
    ranks = vision.start()
    vision.save(ranks, *range(1050, 1350, 50))
    vision.end(ranks, 1300)
    stored_policy.store(catalog.database, "vision/resnet50", ckptstore.Policy(keep_last=3, keep_every=500))

    lagging = Job(catalog, home, "moe-16b", 8, 6)
    ranks = lagging.start()
    lagging.save(ranks, *range(50, 350, 50))
    lagging.save([launch for launch in ranks if launch.rank != 5], 350, 400)  # noqa: PLR2004 — one of eight

    back = Job(catalog, home, "speech-encoder", 2, 3)
    back.save(back.start(), *range(100, 700, 100))
    plan = catalog.resolve("speech-encoder", step=300).plan
    if plan is not None:
        catalog.branch(plan)
    ranks = back.start()
    back.save(ranks, 350, 400, 450)
    back.end(ranks, 450)

    looping = Job(catalog, home, "diffusion-xl", 2, 4)
    looping.save(looping.start(), 100, 200)
    for _ in range(4):
        looping.start()
    small = Job(catalog, home, "digits", 1, 5)
    ranks = small.start()
    small.save(ranks, *range(20, 220, 20))
    small.end(ranks, 200)


def main() -> None:
    """Make the history, and serve it until Ctrl-C; arguments go to `ckptstore serve`."""
    with tempfile.TemporaryDirectory(prefix="ckptstore-serve-") as made:
        url = f"sqlite:///{made}/catalog.db"
        print("making the history of six runs", flush=True)
        with ckptstore.connect(url) as catalog:
            make(catalog, Path(made))
        try:
            subprocess.run([COMMAND, "--db", url, "serve", *sys.argv[1:]], check=False)
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
