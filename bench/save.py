"""A save of `launch.loop`: the pause of training compared with a bare copy, the file with a raw write of its bytes.

    python -m bench.save [--quick]

The pause is the time that the training thread waits. MindSpore returns when the file is written, the loop when the
values are copied. The loop's save counts as done when the file is on the disk under its final name. The raw write is
synced too; the files of MindSpore are not. The first save of each way is not counted, because it must allocate memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np

import ckptstore.mindspore
from bench import network
from bench.loop import Trained
from bench.measure import CKPTSTORE, Budget, Found, Row
from bench.task import run_alone
from ckptstore.core.model import Kind
from ckptstore.mindspore import TrainState

TASK = "save"
SIZES, QUICK_SIZES = (1 << 20, 100 << 20, 1 << 30), (1 << 20, 10 << 20)
LARGE = 100 << 20
"""The smallest size with budgets. For smaller saves, the work per file outweighs that per byte."""
SAVES = 8
COPY, RAW = "bare copy", "raw write, synced"
PAUSE, WRITE = 1.2, 1.3
FORMS = ("ckpt", "safetensors")


def raw(path: Path, arrays: list[Any]) -> None:
    """Write only the bytes, and sync them."""
    with path.open("xb", buffering=0) as file:
        for each in arrays:
            data = memoryview(each.reshape(-1).view(np.uint8))
            while data.nbytes:
                data = data[file.write(data) or 0 :]
        os.fsync(file.fileno())


class Saves:
    """Saves of so many bytes: the seconds that training waits for one, and the seconds until its file is written."""

    def __init__(self, work: Path, size: int) -> None:
        self.pauses: dict[str, list[float]] = {}
        self.files: dict[str, list[float]] = {}
        self._work, self._trained = work, Trained(size)
        network_, optimizer = self._trained.network, self._trained.optimizer
        launch = ckptstore.mindspore.join(f"{TASK} {size}")
        loop = launch.loop(
            network_, optimizer, network.dataset(10), epochs=1, directory=work, every=1000, buffers=2 * size + (1 << 20)
        )
        self._loop, self._own = loop, loop._writer
        loop._begin()
        named = TrainState(network_, optimizer).named
        self._values = [{"name": name, "data": item} for name, item in named.items()]
        self._arrays = [item.asnumpy() for item in named.values()]
        self._held = [np.empty_like(each) for each in self._arrays]

    def measure(self) -> None:
        """Measure the ways in turns, because a way that writes later finds a busier disk."""
        by_mindspore = [partial(self._by_mindspore, form) for form in FORMS]
        ways: list[Callable[[int], None]] = [self._by_ckptstore, self._bare, *by_mindspore]
        for turn in range(SAVES + 1):
            for way in ways if turn % 2 else reversed(ways):
                way(turn)
                os.sync()
            for path in self._work.glob("*-*"):
                path.unlink()
            os.sync()
            if turn == 0:
                self.pauses.clear()
                self.files.clear()
        self._loop._end(None)
        self._loop._over()
        network.without_ballast(ms.Model(self._trained.network, None, self._trained.optimizer))

    def _by_ckptstore(self, turn: int) -> None:
        self._loop._progress.global_step = turn
        begin = time.perf_counter()
        self._own.save(Kind.PERIODIC, (1, turn + 1), dict)
        self._took(self.pauses, CKPTSTORE, begin)
        self._own.wait()
        self._took(self.files, CKPTSTORE, begin)
        assert self._loop._session.recorder.flush(60)

    def _bare(self, turn: int) -> None:
        begin = time.perf_counter()
        for into, each in zip(self._held, self._arrays, strict=True):
            np.copyto(into, each)
        self._took(self.pauses, COPY, begin)
        begin = time.perf_counter()
        raw(self._work / f"raw-{turn}", self._arrays)
        self._took(self.files, RAW, begin)

    def _by_mindspore(self, form: str, turn: int) -> None:
        begin = time.perf_counter()
        ms.save_checkpoint(self._values, str(self._work / f"own-{turn}.{form}"), format=form)
        self._took(self.pauses, f"MindSpore, {form}", begin)
        self._took(self.files, f"MindSpore, {form}", begin)

    @staticmethod
    def _took(noted: dict[str, list[float]], who: str, begin: float) -> None:
        noted.setdefault(who, []).append(time.perf_counter() - begin)


def run(work: Path, *, quick: bool) -> Found:
    """Measure each size."""
    found = Found()
    network.on_cpu()
    for size in QUICK_SIZES if quick else SIZES:
        saves = Saves(work / f"{size}", size)
        saves.measure()
        pause = found.add(Row(TASK, "pause of a save on the training thread, bytes", size, saves.pauses))
        file = found.add(Row(TASK, "until the file is there, bytes", size, saves.files))
        name = f"pause of a save of {size >> 20} MiB"
        for form in FORMS:
            ratio = pause.ratio(CKPTSTORE, f"MindSpore, {form}").median
            found.check(Budget(f"{name} / mindspore.save_checkpoint, {form}", ratio, 1))
        if size >= LARGE:
            found.check(Budget(f"{name} / {COPY}", pause.ratio(CKPTSTORE, COPY).median, PAUSE))
            name = f"a file of {size >> 20} MiB, digest and all, / {RAW}"
            found.check(Budget(name, file.ratio(CKPTSTORE, RAW).median, WRITE))
    return found


if __name__ == "__main__":
    run_alone(run)
