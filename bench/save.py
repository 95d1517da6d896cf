"""A save of a functional loop: the pause of training against a bare copy, the file against a raw write of its bytes.

    python -m bench.save [--quick]

The pause is what the training thread waits for: MindSpore returns when the file is written, the loop when the values
are copied. The file of the loop is on the disk, with its name, when it is there. The raw write is synced too, the
files of MindSpore are not. All have their memory: a first save, which has to find it, is not counted.
"""

from __future__ import annotations

import os
import time
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
SAVES = 5
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


def saves(work: Path, size: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The seconds that training waits for a save of so many bytes, and those until the file is there."""
    trained = Trained(size)
    launch = ckptstore.mindspore.join(f"{TASK} {size}")
    loop = launch.loop(trained.network, trained.optimizer, network.dataset(10), epochs=1, directory=work, every=1000)
    own, state = loop._saves, TrainState(trained.network, trained.optimizer)
    own.begin()
    values = [{"name": name, "data": item} for name, item in state.named.items()]
    arrays = [item.asnumpy() for item in state.named.values()]
    held = [np.empty_like(each) for each in arrays]
    pauses: dict[str, list[float]] = {CKPTSTORE: [], COPY: [], **{f"MindSpore, {form}": [] for form in FORMS}}
    files: dict[str, list[float]] = {CKPTSTORE: [], RAW: [], **{f"MindSpore, {form}": [] for form in FORMS}}
    for turn in range(SAVES + 1):
        pause, file = {}, {}
        begin = time.perf_counter()
        own.save(Kind.PERIODIC, turn, (1, turn + 1), "{}")
        pause[CKPTSTORE] = time.perf_counter() - begin
        own.wait()
        file[CKPTSTORE] = time.perf_counter() - begin
        assert own.recorder.flush(60)
        begin = time.perf_counter()
        for into, each in zip(held, arrays, strict=True):
            np.copyto(into, each)
        pause[COPY] = time.perf_counter() - begin
        begin = time.perf_counter()
        raw(work / f"raw-{turn}", arrays)
        file[RAW] = time.perf_counter() - begin
        for form in FORMS:
            begin = time.perf_counter()
            ms.save_checkpoint(values, str(work / f"own-{turn}.{form}"), format=form)
            pause[f"MindSpore, {form}"] = file[f"MindSpore, {form}"] = time.perf_counter() - begin
        for path in work.glob("*-*"):
            path.unlink()
        os.sync()
        if turn:
            for all_of_them, one in ((pauses, pause), (files, file)):
                for who, seconds in one.items():
                    all_of_them[who].append(seconds)
    own.end(SAVES, None)
    network.without_ballast(ms.Model(trained.network, None, trained.optimizer))
    return pauses, files


def run(work: Path, *, quick: bool) -> Found:
    """Each size."""
    found = Found()
    network.on_cpu()
    for size in QUICK_SIZES if quick else SIZES:
        paused, written = saves(work / f"{size}", size)
        pause = found.add(Row(TASK, "pause of a save on the training thread, bytes", size, paused))
        file = found.add(Row(TASK, "until the file is there, bytes", size, written))
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
