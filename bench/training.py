"""A step of training with the registrar against one without, in turns; and what it costs the training thread.

    python -m bench.training [--quick]

Real MindSpore on the CPU: LeNet-5, a save every 10 steps, which is more often than anybody saves. A step's time is the
mean over the ten places between two saves, at each place the median of a block's steps: what happens at every save,
and what the registrar's thread does after it, counts in full; what disturbs the machine now and then does not.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

import ckptstore.mindspore
from bench import network
from bench.measure import CKPTSTORE, Budget, Found, Row, say, turns
from bench.task import run_alone
from ckptstore.ops.connect import connect

TASK = "training"
STEPS, QUICK_STEPS = 300, 40
EVERY = 10
REPEATS, QUICK_REPEATS = 7, 5
MOST = 1.01
MICROSECONDS_P50, MICROSECONDS_P99 = 50, 1000
FLOOR = "without"


class Clock(Callback):
    """When the steps of a block ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_step_end(self, run_context: Any) -> None:  # noqa: ARG002
        self.ends.append(time.perf_counter())

    @property
    def step(self) -> float:
        """The seconds of a step, but for the first ones, in which MindSpore compiles."""
        steps = [after - before for before, after in pairwise(self.ends)][EVERY - 1 :]
        return fmean(median(steps[place::EVERY]) for place in range(EVERY))


def measured(action: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    """The same, with its seconds noted."""

    @wraps(action)
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return action(*args, **kwargs)
        finally:
            into.append(time.perf_counter() - begin)

    return timed


class Training:
    """One model that is trained block after block."""

    def __init__(self, work: Path, steps: int) -> None:
        self.work = work
        self.steps = steps
        self.model: Model = network.model()
        self.dataset = network.dataset(steps)
        self.hand_overs: list[float] = []
        self.hooks: list[float] = []
        self._blocks = 0

    def block(self, *, registered: bool) -> float:
        """The seconds of a step of one block."""
        self._blocks += 1
        folder = self.work / f"block-{self._blocks}"
        ckpt_cb = ModelCheckpoint("net", str(folder), CheckpointConfig(save_checkpoint_steps=EVERY))
        clock = Clock()
        callbacks = [ckpt_cb, clock]
        if registered:
            launch = ckptstore.mindspore.join(folder.name)
            assert launch.resume(self.model, self.dataset).fresh
            registrar = launch.registrar(ckpt_cb)
            self._watch(registrar)
            callbacks = [ckpt_cb, registrar, clock]
        self.model.train(1, self.dataset, callbacks=callbacks, dataset_sink_mode=False)
        if registered:
            known = connect().files(folder.name)
            assert len(known) == self.steps // EVERY, known
            assert not registrar.failed
        shutil.rmtree(folder)
        assert len(clock.ends) == self.steps
        return clock.step

    def _watch(self, registrar: Any) -> None:
        recorder = registrar._training.recorder
        recorder.submit = measured(recorder.submit, self.hand_overs)
        registrar.on_train_step_end = measured(registrar.on_train_step_end, self.hooks)


def run(work: Path, *, quick: bool) -> Found:
    """Blocks in turns."""
    found = Found()
    network.on_cpu()
    steps = QUICK_STEPS if quick else STEPS
    training = Training(work, steps)
    say(f"{TASK}: blocks of {steps} steps")
    taken, _ = turns(
        {
            CKPTSTORE: lambda: training.block(registered=True),
            FLOOR: lambda: training.block(registered=False),
        },
        repeats=QUICK_REPEATS if quick else REPEATS,
    )
    step = found.add(Row(TASK, "a step of training, steps a block", steps, taken))
    found.check(Budget("a step of training with the registrar / without", step.ratio(CKPTSTORE, FLOOR).median, MOST))
    given = sorted(training.hand_overs)
    hooks = sorted(training.hooks)
    found.add(Row(TASK, "hand-over of a save on the training thread, saves", len(given), {CKPTSTORE: given}))
    found.add(Row(TASK, "all of the registrar at the end of a step, steps", len(hooks), {CKPTSTORE: hooks}))
    middle, late = given[len(given) // 2], given[len(given) * 99 // 100]
    found.check(Budget("hand-over on the training thread, p50", middle * 1e6, MICROSECONDS_P50, unit="µs"))
    found.check(Budget("hand-over on the training thread, p99", late * 1e6, MICROSECONDS_P99, unit="µs"))
    return found


if __name__ == "__main__":
    run_alone(run)
