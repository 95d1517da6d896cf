"""A save of a functional loop: the pause of training against a bare copy, the file against a raw write of its bytes.

    python -m bench.save [--quick]

The pause is what the training thread waits for: MindSpore returns when the file is written, the loop when the values
are copied. The file of the loop is on the disk, with its name, when it is there. The raw write is synced too, the
files of MindSpore are not. All have their memory: a first save, which has to find it, is not counted.
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
"""From here on the budgets hold: less is a matter of files and names, not of bytes."""
SAVES = 8
COPY, RAW = "bare copy", "raw write, synced"
PAUSE, WRITE = 1.2, 1.3
FORMS = ("ckpt", "safetensors")


def raw(path: Path, arrays: list[Any]) -> None:
    """Nothing but the bytes, and that they are on the disk."""
    with path.open("xb", buffering=0) as file:
        for each in arrays:
            data = memoryview(each.reshape(-1).view(np.uint8))
            while data.nbytes:
                data = data[file.write(data) or 0 :]
        os.fsync(file.fileno())


class Saves:
    """Saves of so many bytes: the seconds that training waits for one, and those until the file is there."""

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
        """Each in turns; who writes later finds a disk that is busy."""
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
    """Each size."""
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
