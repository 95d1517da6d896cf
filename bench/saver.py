"""A save in `Model.train`: the pause of `launch.saver`, compared with ModelCheckpoint, Orbax and a bare copy.

    python -m bench.saver [--quick]

One training of LeNet-5 with extra bytes. The saver, a ModelCheckpoint of each format, and a bare copy of the values
take turns. The pause is the time of the callback at the end of a step. Each way starts when the disk is idle.

Steps during a save of the saver are compared with the steps right after it. The same is done for a thread that only
writes as many bytes, which is the least that any save does. Orbax saves the same bytes as NumPy arrays, asynchronously,
in its own process and environment. The first save of each way has a separate row.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from mindspore.train import Callback, CheckpointConfig, ModelCheckpoint

import ckptstore.mindspore
from bench import network
from bench.measure import CKPTSTORE, Budget, Found, Row, say
from bench.resume import launched
from bench.save import LARGE, raw
from bench.task import run_alone
from bench.training import measured
from bench.worker import PEERS, Worker

TASK = "saver"
SIZES, QUICK_SIZES = (100 << 20, 1 << 30, 4 << 30), (10 << 20, 100 << 20)
SAVES, QUICK_SAVES = 6, 3
AFTER = 20
"""The number of steps after a save that are compared with the steps during it."""
EPOCHS = 1000
"""More than needed: training stops when all ways have saved."""
RANKS, COPIED = 4, 512 << 20
COPY, RAW, ORBAX = "bare copy", "raw write, synced", "Orbax, asynchronous"
FORMS = ("ckpt", "safetensors")
PAUSE, OF_MINDSPORE, STEP = 1.2, 0.1, 1.05


class Turns(Callback):
    """Saves with one way after the other; each begins when the one before is done. Must be before the saver."""

    def __init__(self, saver: Any, own: dict[str, ModelCheckpoint], work: Path, saves: int) -> None:
        super().__init__()
        self.pauses: dict[str, list[float]] = {CKPTSTORE: []}
        self.steps: dict[str, list[tuple[float, float]]] = {CKPTSTORE: [], RAW: []}
        """For each save, the mean seconds of a step while it is written, and of a step after it."""
        self._saver, self._own, self._work = saver, own, work
        self._turns = [who for _ in range(1 + saves) for who in (CKPTSTORE, COPY, RAW, *own)]
        self._raw = ThreadPoolExecutor(1)
        self._raw_save: Future[None] = Future()
        self._writing = ""
        self._busy: list[float] = []
        self._calm: list[float] = []
        self._began = 0.0
        self._held: list[Any] = []
        saver._save = measured(saver._save, self.pauses[CKPTSTORE])

    def on_train_step_begin(self, run_context: Any) -> None:  # noqa: ARG002
        self._began = time.perf_counter()

    def on_train_step_end(self, run_context: Any) -> None:
        took = time.perf_counter() - self._began
        if self._writing:
            save = self._raw_save if self._writing == RAW else self._saver._writer._under_way
            (self._calm if save.done() else self._busy).append(took)
            if len(self._calm) < AFTER:
                return
            if len(self._busy) >= AFTER:
                self.steps[self._writing].append((statistics.mean(self._busy), statistics.mean(self._calm)))
            self._writing = ""
            clear(self._work)
        if not self._turns:
            run_context.request_stop()
            return
        os.sync()
        who = self._turns.pop(0)
        self._busy, self._calm = [], []
        if who in (CKPTSTORE, RAW):
            self._writing = who
        if who == CKPTSTORE:
            self._saver.save()
            return
        if who == RAW:
            self._raw_save = self._raw.submit(raw, self._work / "raw-1_1.bytes", self._held)
            return
        begin = time.perf_counter()
        if who == COPY:
            self._copy(run_context.original_args().train_network)
        else:
            self._own[who]._save_ckpt(run_context.original_args(), force_to_save=True)
        self.pauses.setdefault(who, []).append(time.perf_counter() - begin)
        clear(self._work)

    def _copy(self, net: Any) -> None:
        arrays = [item.asnumpy() for item in net.get_parameters()]
        if not self._held:
            self._held = [np.empty_like(each) for each in arrays]
        for into, each in zip(self._held, arrays, strict=True):
            np.copyto(into, each)


def clear(work: Path) -> None:
    """Delete the saved files."""
    for path in work.rglob("*-*_*.*"):
        path.unlink()


def measure(found: Found, work: Path, size: int, saves: int) -> None:
    """Measure one size."""
    work.mkdir()
    model, dataset = network.model(size), network.dataset(2000)
    own = {
        f"ModelCheckpoint, {form}": ModelCheckpoint(
            "own", str(work / form), CheckpointConfig(save_checkpoint_steps=10**9, format=form)
        )
        for form in FORMS
    }
    launch = ckptstore.mindspore.join(f"{TASK} {size}")
    assert launch.resume(model, dataset).fresh
    saver = launch.saver(work / "saver", every=10**9, buffers=2 * size + (1 << 20))
    turns = Turns(saver, own, work, saves)
    model.train(EPOCHS, dataset, callbacks=[turns, saver], dataset_sink_mode=False)
    network.without_ballast(model)
    say(f"the most memory of this process, with the network, its copy, and what MindSpore takes to save: {peak()}")
    pauses = {who: taken[1 : 1 + saves] for who, taken in turns.pauses.items()}
    found.add(Row(TASK, "the first save of a process, bytes", size, {who: [t[0]] for who, t in turns.pauses.items()}))
    if PEERS.exists():
        with Worker(PEERS, "bench.peers.orbax_saves", work / "orbax") as worker:
            pauses[ORBAX] = worker.ask(size=size, saves=saves)["pauses"]
    else:
        say(f"Orbax is not here: make bench sets up {PEERS.parents[1].name}")
    row = found.add(Row(TASK, "pause of a save of Model.train, bytes", size, pauses))
    name = f"pause of launch.saver, {size >> 20} MiB"
    if size >= LARGE:
        found.check(Budget(f"{name} / {COPY}", row.ratio(CKPTSTORE, COPY).median, PAUSE))
    for form in FORMS if size >= LARGE else ():
        who = f"ModelCheckpoint, {form}"
        floor = row.ratio(COPY, who).median
        if PAUSE * floor <= OF_MINDSPORE:
            found.check(Budget(f"{name} / {who}", row.ratio(CKPTSTORE, who).median, OF_MINDSPORE))
        else:  # MindSpore syncs nothing: its .safetensors is only copied into the page cache
            say(f"  no budget beside {who}: the {COPY} alone is {floor:.3g} × of it")
    while_it_writes(found, size, turns.steps)


def while_it_writes(found: Found, size: int, steps: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Compare the steps during a save with the steps after it."""
    if min(map(len, steps.values())) < 2:  # a small save is written within a few steps
        return
    seconds = {f"while {who} writes": [busy for busy, _ in taken] for who, taken in steps.items()}
    found.add(Row(TASK, "a step, bytes", size, {**seconds, "after": [calm for _, calm in steps[CKPTSTORE]]}))
    own, floor = (statistics.median(busy / calm for busy, calm in steps[who][1:]) for who in (CKPTSTORE, RAW))
    say(f"  while it writes / after: {own:.3g} ×; while a {RAW} writes as much: {floor:.3g} × ({os.cpu_count()} cores)")
    if size >= LARGE:
        found.check(Budget(f"a step while {size >> 20} MiB are saved / one without", own, max(STEP, STEP * floor)))


def measure_copies(found: Found, work: Path, size: int, saves: int) -> None:
    """Measure the time until a save is written, if all ranks save the same values, and if only one of them does."""
    ways = {"all save": 0, "copies=1": 1}
    seconds = {
        who: launched("saver_job.py", RANKS, work / f"{size}-{n}", n, size, saves)["saves"] for who, n in ways.items()
    }
    row = found.add(Row(TASK, f"until a save of {RANKS} ranks is written, bytes a rank", size, seconds))
    name = f"copies=1, {RANKS} ranks, {size >> 20} MiB each / all save"
    found.check(Budget(name, row.ratio("copies=1", "all save").median, 1))


def peak() -> str:
    """The peak memory of this process."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB"


def run(work: Path, *, quick: bool) -> Found:
    """Measure each size."""
    found = Found()
    network.on_cpu()
    for size in QUICK_SIZES if quick else SIZES:
        measure(found, work / f"{size}", size, QUICK_SAVES if quick else SAVES)
    measure_copies(found, work, QUICK_SIZES[-1] if quick else COPIED, QUICK_SAVES if quick else SAVES)
    return found


if __name__ == "__main__":
    run_alone(run)
