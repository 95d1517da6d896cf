"""A training step with the registrar, compared with a step without, in turns; and the cost on the training thread.

    python -m bench.training [--quick]

Real MindSpore on the CPU trains LeNet-5, with a save every 10 steps, far more often than in practice. One training runs
in rounds of ten steps, and each round begins with a save. The registrar is active only in every other round. So the
compared rounds are a second apart, and slow changes of the machine do not matter. The work of the registrar's thread
after a save counts in full.

Now and then, other work on the machine makes a step up to twice as long, with and without the registrar. So steps are
compared by their place after the save: first with first, tenth with tenth. The lowest twentieth of each place counts as
the time of an undisturbed step. With this method, equal rounds differ by 0.3 %; with the medians of pairs, by 2 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

import ckptstore.mindspore
from bench import network
from bench.measure import CKPTSTORE, Budget, Found, Row, say
from bench.task import run_alone
from ckptstore.api import connect

TASK = "training"
EVERY = 10
PAIRS, QUICK_PAIRS = 60, 6
UNDISTURBED = 20  # one of so many rounds counts as undisturbed
WARM_UP = 2  # pairs of rounds during which MindSpore compiles
MOST = 1.01
MICROSECONDS_P50, MICROSECONDS_P99 = 50, 1000
FLOOR = "without"


class Clock(Callback):
    """Notes when each step ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_step_end(self, run_context: Any) -> None:  # noqa: ARG002
        self.ends.append(time.perf_counter())

    def steps(self, number: int) -> list[float]:
        """The seconds of each step of a round."""
        before = number * EVERY - 2  # steps are counted from 1, `ends` from 0
        ends = self.ends[before : before + EVERY + 1]
        return [end - begin for begin, end in pairwise(ends)]


def undisturbed(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The seconds of each step of a round, by its place after the save, without other work on the machine."""
    return [sorted(of_place)[len(rounds) // UNDISTURBED] for of_place in zip(*rounds, strict=True)]


def is_heard(step: int) -> bool:
    """Whether the registrar is active at a step, counted from 1: in one round of each pair, alternately first."""
    return step // EVERY % 4 in (0, 3)


def measured(action: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    """The same function, which also notes the seconds of each call."""

    @wraps(action)
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return action(*args, **kwargs)
        finally:
            into.append(time.perf_counter() - begin)

    return timed


class Rounds:
    """One training, and the times of `pairs` pairs of rounds after the warm-up."""

    def __init__(self, work: Path, pairs: int) -> None:
        self.steps = 2 * EVERY * (WARM_UP + pairs)
        self.hand_overs: list[float] = []
        self.hooks: list[float] = []
        network.on_cpu()
        model: Model = network.model()
        dataset = network.dataset(self.steps)
        ckpt_cb = ModelCheckpoint("net", str(work), CheckpointConfig(save_checkpoint_steps=EVERY))
        launch = ckptstore.mindspore.join(TASK)
        assert launch.resume(model, dataset).fresh
        registrar = launch.registrar(ckpt_cb)
        self._switch(registrar)
        clock = Clock()
        model.train(1, dataset, callbacks=[ckpt_cb, registrar, clock], dataset_sink_mode=False)
        assert not registrar.failed
        known = connect().files(TASK)
        heard = [step for step in range(EVERY, self.steps + 1, EVERY) if is_heard(step)]
        assert sorted(file.global_step for file in known) == heard, known
        rounds = range(2 * WARM_UP, 2 * (WARM_UP + pairs))
        self.taken = {
            CKPTSTORE: [clock.steps(number) for number in rounds if is_heard(number * EVERY)],
            FLOOR: [clock.steps(number) for number in rounds if not is_heard(number * EVERY)],
        }
        """The seconds of each step of each round."""

    def _switch(self, registrar: Any) -> None:
        recorder = registrar._session.recorder
        recorder.submit = measured(recorder.submit, self.hand_overs)
        begin, end = registrar.on_train_step_begin, measured(registrar.on_train_step_end, self.hooks)

        def on_train_step_begin(run_context: Any) -> None:
            step = run_context.original_args().cur_step_num
            if is_heard(step):
                if not is_heard(step - 1):  # skip saves of the round without the registrar
                    for watch in registrar._watches:
                        watch.seen = watch._latest()
                begin(run_context)

        def on_train_step_end(run_context: Any) -> None:
            if is_heard(run_context.original_args().cur_step_num):
                end(run_context)

        registrar.on_train_step_begin, registrar.on_train_step_end = on_train_step_begin, on_train_step_end


def run(work: Path, *, quick: bool) -> Found:
    """Measure one training."""
    found = Found()
    pairs = QUICK_PAIRS if quick else PAIRS
    say(f"{TASK}: {pairs} pairs of {EVERY} steps")
    rounds = Rounds(work / "ckpt", pairs)
    means = {who: [sum(steps) / EVERY for steps in each] for who, each in rounds.taken.items()}
    found.add(Row(TASK, "a step of training, mean of ten, steps", rounds.steps, means))
    least = {who: undisturbed(each) for who, each in rounds.taken.items()}
    found.add(Row(TASK, "a step of training, undisturbed, by its place of ten, steps", rounds.steps, least))
    name = "a step of training with the registrar / without, undisturbed"
    found.check(Budget(name, sum(least[CKPTSTORE]) / sum(least[FLOOR]), MOST))
    given = sorted(rounds.hand_overs)
    hooks = sorted(rounds.hooks)
    found.add(Row(TASK, "hand-over of a save on the training thread, saves", len(given), {CKPTSTORE: given}))
    found.add(Row(TASK, "all of the registrar at the end of a step, steps", len(hooks), {CKPTSTORE: hooks}))
    middle, late = given[len(given) // 2], given[len(given) * 99 // 100]
    found.check(Budget("hand-over on the training thread, p50", middle * 1e6, MICROSECONDS_P50, unit="µs"))
    found.check(Budget("hand-over on the training thread, p99", late * 1e6, MICROSECONDS_P99, unit="µs"))
    return found


if __name__ == "__main__":
    run_alone(run)
