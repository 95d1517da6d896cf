"""A step of training while a thread of the rank copies files to a tier, against one without, in turns.

    python -m bench.copying [--quick]

Real MindSpore on the CPU: LeNet-5, in stretches of sixty steps. In one stretch no file is copied, in one a thread of
the process copies at 10 MiB/s with ckptstore, in one at 50 MiB/s, and in one it only copies and syncs, at 50 MiB/s.
The tier is a directory: a server on this machine would take the processor from the training, and a bucket's does not.
A stretch counts by the mean of its steps, without those in which the last file of the stretch before may be under way.

The training has both cores of this machine, so every byte that is digested costs it something: with devices it does
not.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mindspore.train import Callback, Model

from bench import network
from bench.measure import Budget, Found, Row, say
from bench.task import run_alone
from ckptstore.api import Catalog, connect
from ckptstore.core.copy_keys import key_of
from ckptstore.objects.tiers import open_tier
from ckptstore.replicate.copy_up import Rate
from ckptstore.replicate.replicator import Replicator
from ckptstore.tiers import facts

TASK = "copying"
MIB = 1 << 20
NONE, SLOW, FAST, ALONE = "no copies", "10 MiB/s", "50 MiB/s", "copy and sync, 50 MiB/s"
WAYS = (NONE, SLOW, FAST, ALONE)
STRETCH, SETTLES = 60, 15
TURNS, QUICK_TURNS = 12, 2
WARM_UP = 1
MOST = 1.05  # of a step without: to copy and sync alone, at 50 MiB/s, is 1.01 where the training has every core


class Copier(threading.Thread):
    """Copies a file again and again, in the way that is asked for."""

    def __init__(self, work: Path) -> None:
        super().__init__(daemon=True)
        self._work = work
        catalog = connect()
        self._ways: dict[str, Callable[[], None]] = {
            SLOW: self._with_ckptstore(catalog, 10 * MIB, 8 * MIB),
            FAST: self._with_ckptstore(catalog, 50 * MIB, 32 * MIB),
            ALONE: partial(self._alone, Rate(50 * MIB), 32 * MIB),
        }
        self._way = NONE
        self._switched = threading.Event()
        self.copied = dict.fromkeys(WAYS, 0)

    def switch(self, way: str) -> None:
        """From now on copy in this way."""
        self._way = way
        self._switched.set()

    def run(self) -> None:
        """Copy until the process ends."""
        while True:
            while (way := self._way) == NONE:
                self._switched.wait()
                self._switched.clear()
            self._ways[way]()
            self.copied[way] += 1

    def _with_ckptstore(self, catalog: Catalog, rate: int, size: int) -> Callable[[], None]:
        name = f"of-{rate}"
        source = self._work / f"{name}.ckpt"
        source.write_bytes(os.urandom(size))
        launch = catalog.join(name, rank=0, world_size=1, launch_id=name)
        launch.resolve()
        launch.register(str(source), global_step=1)
        launch.let_go()
        (file,) = catalog.files(name)
        tier = facts.tier_of("far", str(self._work / "far"), 1)
        store = open_tier(tier.url)
        store.prepare()
        facts.add(catalog.database, tier)
        replicator = Replicator(catalog.database, rate)

        def copy() -> None:
            assert replicator.copy(file, [tier]) == []
            store.remove(key_of(file))

        return copy

    def _alone(self, rate: Rate, size: int) -> None:
        rate.take(size)
        copy = self._work / "alone.ckpt"
        shutil.copyfile(self._work / f"of-{50 * MIB}.ckpt", copy)
        with copy.open("rb") as written:
            os.fsync(written.fileno())
        copy.unlink()


class Clock(Callback):
    """When each step ended; switches from one way to the next."""

    def __init__(self, copier: Copier) -> None:
        super().__init__()
        self._copier = copier
        self.ends: list[float] = []

    def on_train_step_end(self, run_context: Any) -> None:  # noqa: ARG002
        self.ends.append(time.perf_counter())
        if len(self.ends) % STRETCH == 0:
            self._copier.switch(way_of(len(self.ends) // STRETCH))

    def mean(self, stretch: int) -> float:
        """The seconds of a step of a stretch."""
        ends = self.ends[stretch * STRETCH + SETTLES - 1 : (stretch + 1) * STRETCH]
        return (ends[-1] - ends[0]) / (len(ends) - 1)


def way_of(stretch: int) -> str:
    """How files are copied in a stretch: every other turn goes through the ways backwards."""
    turn, place = divmod(stretch, len(WAYS))
    return WAYS[place] if turn % 2 else WAYS[-1 - place]


def run(work: Path, *, quick: bool) -> Found:
    """One training."""
    found = Found()
    turns = WARM_UP + (QUICK_TURNS if quick else TURNS)
    steps = turns * len(WAYS) * STRETCH
    say(f"{TASK}: {steps:,} steps")
    copier = Copier(work)
    network.on_cpu()
    model: Model = network.model()
    clock = Clock(copier)
    copier.start()
    model.train(1, network.dataset(steps), callbacks=[clock], dataset_sink_mode=False)
    copier.switch(NONE)
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for stretch in range(WARM_UP * len(WAYS), turns * len(WAYS)):
        taken[way_of(stretch)].append(clock.mean(stretch))
    row = found.add(Row(TASK, "a step of training while files are copied, steps", STRETCH, taken))
    say(f"  files copied: {', '.join(f'{number} ({way})' for way, number in copier.copied.items() if number)}")
    for way in (FAST, ALONE):
        say(f"  {way} / {NONE}: {row.ratio(way, NONE).median:.3f} ×")
    found.check(Budget(f"a step while copies run at {SLOW} / without", row.ratio(SLOW, NONE).median, MOST))
    return found


if __name__ == "__main__":
    run_alone(run)
