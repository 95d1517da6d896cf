"""A training step while a thread of the rank copies files to a tier, compared with a step without copies, in turns.

    python -m bench.copying [--quick]

Real MindSpore on the CPU trains LeNet-5, in stretches of sixty steps. There are four kinds of stretches: no file is
copied; a thread of the process copies with ckptstore at 10 MiB/s; the same at 50 MiB/s; the thread only copies and
syncs, without ckptstore, at 50 MiB/s. The tier is a directory, because a server on this machine would take processor
time from the training, as the server of a bucket does not. The result of a stretch is the mean of its steps. The first
steps are left out, because the last file of the stretch before may still be copied during them.

The training uses both cores of this machine, so the digest of the copied bytes takes time from it. It does not if the
training runs on devices.
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
MOST = 1.05  # times a step without copies; to copy and sync alone, at 50 MiB/s, gives 1.01 if training has all cores


class Copier(threading.Thread):
    """Copies a file again and again, in the way that `switch` sets."""

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
        """Copy in this way from now on."""
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
    """Notes when each step ended, and switches to the next way after each stretch."""

    def __init__(self, copier: Copier) -> None:
        super().__init__()
        self._copier = copier
        self.ends: list[float] = []

    def on_train_step_end(self, run_context: Any) -> None:  # noqa: ARG002
        self.ends.append(time.perf_counter())
        if len(self.ends) % STRETCH == 0:
            self._copier.switch(way_of(len(self.ends) // STRETCH))

    def mean(self, stretch: int) -> float:
        """The mean seconds of a step in a stretch."""
        ends = self.ends[stretch * STRETCH + SETTLES - 1 : (stretch + 1) * STRETCH]
        return (ends[-1] - ends[0]) / (len(ends) - 1)


def way_of(stretch: int) -> str:
    """The way of copying in a stretch. Every other turn goes through the ways backwards."""
    turn, place = divmod(stretch, len(WAYS))
    return WAYS[place] if turn % 2 else WAYS[-1 - place]


def run(work: Path, *, quick: bool) -> Found:
    """Measure one training."""
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
