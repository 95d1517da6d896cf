"""A step of `launch.loop`, compared with a step of a bare loop, in turns.

    python -m bench.loop [--quick]

Real MindSpore on the CPU trains LeNet-5; `jit` compiles the step. Ten steps of a bare loop and ten steps of
`launch.loop` take turns in one process. On this machine a step takes from one to three times as long as the quickest.
So the loop's own work is timed alone, and compared with the quickest steps of the bare loop.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import nn, ops

import ckptstore.mindspore
from bench import network
from bench.measure import CKPTSTORE, Budget, Found, Row, say
from bench.task import run_alone
from bench.training import measured, undisturbed

TASK = "loop"
EVERY = 10
PAIRS, QUICK_PAIRS = 30, 6
WARM_UP = 2
MOST = 1.01
FLOOR = "bare"


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
    """The seconds of each step of both loops, in rounds of ten; and the seconds of the loop's own work in a step."""
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


def run(work: Path, *, quick: bool) -> Found:
    """Measure the steps of both loops."""
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
    return found


if __name__ == "__main__":
    run_alone(run)
