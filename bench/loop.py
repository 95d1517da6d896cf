"""A step of a functional loop against the bare one, in turns; and the pause of a save against MindSpore's own.

    python -m bench.loop [--quick]

Real MindSpore on the CPU: LeNet-5, the step compiled by `jit`. Ten steps of a bare loop, ten of `launch.loop`, and so
on, in one process. Such a step takes any time from one to three times as long as the quickest, here; so what the loop
does itself is timed, and held against the quickest steps of the bare one. The pause of a save is what the training
thread waits for: MindSpore returns when the file is written, the loop when the values are copied.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptstore.mindspore
from bench import network
from bench.measure import CKPTSTORE, Budget, Found, Row, say
from bench.task import run_alone
from bench.training import measured, undisturbed
from ckptstore.core.model import Kind
from ckptstore.mindspore import TrainState

TASK = "loop"
EVERY = 10
PAIRS, QUICK_PAIRS = 30, 6
WARM_UP = 2
MOST = 1.01
FLOOR = "bare"
SIZES, QUICK_SIZES = (1 << 20, 100 << 20, 1 << 30), (1 << 20, 10 << 20)
SAVES = 5


class Trained:
    """A network, its optimizer, and the step that trains it."""

    def __init__(self, ballast: int = 4) -> None:
        self.network = network.LeNet5(ballast)
        self.optimizer = nn.Momentum(self.network.trainable_params(), learning_rate=0.01, momentum=0.9)
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

        def forward(x: Any, y: Any) -> Any:
            return loss(self.network(x), y)

        gradients = ops.value_and_grad(forward, None, self.optimizer.parameters)

        def step(x: Any, y: Any) -> Any:
            found, given = gradients(x, y)
            return ops.depend(found, self.optimizer(given))

        self.step = ms.jit(step)


def steps(work: Path, pairs: int) -> tuple[dict[str, list[list[float]]], list[float]]:
    """The seconds of each step of each round of ten, of both loops; and those that the loop itself takes of a step."""
    trained = Trained()
    count = EVERY * (WARM_UP + pairs)
    bare = network.dataset(count).create_tuple_iterator(num_epochs=1)
    launch = ckptstore.mindspore.join(TASK)
    loop = launch.loop(
        trained.network, trained.optimizer, network.dataset(count), epochs=1, directory=work, every=10 * count
    )
    own: list[list[float]] = [[], []]
    for name, into in (("step", own[0]), ("_end_body", own[1])):
        setattr(loop, name, measured(getattr(loop, name), into))
    batches = iter(loop)
    taken: dict[str, list[list[float]]] = {CKPTSTORE: [], FLOOR: []}
    for number in range(WARM_UP + pairs):
        for who in (FLOOR, CKPTSTORE) if number % 2 else (CKPTSTORE, FLOOR):
            seconds = []
            for _ in range(EVERY):
                begin = time.perf_counter()
                batch = next(bare if who == FLOOR else batches)
                loss = trained.step(*batch)
                if who == CKPTSTORE:
                    loop.step(loss=loss)
                loss.asnumpy()
                seconds.append(time.perf_counter() - begin)
            if number >= WARM_UP:
                taken[who].append(seconds)
    assert list(islice(batches, 1)) == []
    return taken, sorted(map(sum, zip(*own, strict=False)))


def pauses(work: Path, size: int) -> dict[str, list[float]]:
    """The seconds that a save of so many bytes keeps the training thread from its work."""
    trained = Trained(size)
    launch = ckptstore.mindspore.join(f"{TASK} {size}")
    loop = launch.loop(trained.network, trained.optimizer, network.dataset(10), epochs=1, directory=work, every=1000)
    saves, state = loop._saves, TrainState(trained.network, trained.optimizer)
    saves.begin()
    values = [{"name": name, "data": item} for name, item in state.named.items()]
    arrays = [item.asnumpy() for item in state.named.values()]
    held = [np.empty_like(each) for each in arrays]
    taken: dict[str, list[float]] = {
        CKPTSTORE: [],
        "bare copy": [],
        "MindSpore, ckpt": [],
        "MindSpore, safetensors": [],
    }
    for turn in range(SAVES + 1):
        seconds = {}
        begin = time.perf_counter()
        saves.save(Kind.PERIODIC, turn, (1, turn + 1), "{}")
        seconds[CKPTSTORE] = time.perf_counter() - begin
        saves.wait()
        assert saves.recorder.flush(60)
        begin = time.perf_counter()
        for into, each in zip(held, arrays, strict=True):
            np.copyto(into, each)
        seconds["bare copy"] = time.perf_counter() - begin
        for form in ("ckpt", "safetensors"):
            begin = time.perf_counter()
            ms.save_checkpoint(values, str(work / f"own-{turn}.{form}"), format=form)
            seconds[f"MindSpore, {form}"] = time.perf_counter() - begin
        for path in work.glob("*-*"):
            path.unlink()
        if turn:  # in the first one memory is fetched that the others use again
            for who, one in seconds.items():
                taken[who].append(one)
    saves.end(SAVES, None)
    network.without_ballast(ms.Model(trained.network, None, trained.optimizer))
    return taken


def run(work: Path, *, quick: bool) -> Found:
    """Both."""
    found = Found()
    network.on_cpu()
    pairs = QUICK_PAIRS if quick else PAIRS
    say(f"{TASK}: {pairs} pairs of {EVERY} steps")
    taken, own = steps(work / "steps", pairs)
    means = {who: [sum(each) / EVERY for each in rounds] for who, rounds in taken.items()}
    found.add(Row(TASK, "a step of a functional loop, mean of ten, steps", 2 * EVERY * pairs, means))
    least = {who: undisturbed(rounds) for who, rounds in taken.items()}
    found.add(Row(TASK, "what launch.loop itself does in a step, steps", len(own), {CKPTSTORE: own}))
    step = min(least[FLOOR])
    found.check(Budget("a step of launch.loop / of a bare loop", (step + own[len(own) // 2]) / step, MOST))
    for size in QUICK_SIZES if quick else SIZES:
        paused = pauses(work / f"{size}", size)
        row = Row(TASK, "pause of a save on the training thread, bytes", size, paused)
        found.add(row)
        for form in ("ckpt", "safetensors"):
            name = f"pause of a save of {size >> 20} MiB / mindspore.save_checkpoint, {form}"
            found.check(Budget(name, row.ratio(CKPTSTORE, f"MindSpore, {form}").median, 1))
    return found


if __name__ == "__main__":
    run_alone(run)
