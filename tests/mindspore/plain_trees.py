"""Trees of plain MindSpore: trainings in this process, with no ckptstore in them, are killed and restarted by hand.

Their files have the times that they would have if a step took as long as in a real job.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore import mint, nn
from mindspore.common.api import _pynative_executor
from mindspore.experimental import optim as experimental
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint
from mindspore.train.callback import OnRequestExit

from tests.mindspore.cells import Accumulating, OnCpu

STEP_NS = 10_000_000_000
"""How long a step takes, as far as the times of files tell; ranks are a thousandth of that apart."""

Weights = Mapping[str, bytes]


class Killed(BaseException):
    """What ends a launch as a signal does: nothing catches it, nothing is saved."""


class FailedError(Exception):
    """What MindSpore saves a breakpoint at, if it is asked to."""


ENDS: dict[str, type[BaseException]] = {"kill": Killed, "raise": FailedError}


class Step(nn.Cell):
    """A train cell for optimizers that `Model` refuses."""

    def __init__(self, network: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = network, optimizer
        self.grad = ms.value_and_grad(network, None, optimizer.parameters)

    def construct(self, *inputs: Any) -> Any:
        loss, grads = self.grad(*inputs)
        self.optimizer(grads)
        return loss


def _scaled(first: float, factor: int, window: int) -> Callable[..., nn.Cell]:
    """A cell whose loss scale begins at `first`, and grows by `factor` after `window` steps without an overflow."""
    scale = partial(nn.DynamicLossScaleUpdateCell, loss_scale_value=first, scale_factor=factor, scale_window=window)
    return lambda network, optimizer: OnCpu(network, optimizer, scale())


CELLS: dict[str, Callable[..., nn.Cell]] = {
    "step": Step,
    "scaled": _scaled(2.0, 2, 1000),
    "overflowing": _scaled(2.0**127, 8, 6),
    "accumulating": Accumulating,
}
OPTIMIZERS: dict[str, Callable[[Any], nn.Cell]] = {
    "Momentum": lambda parameters: nn.Momentum(parameters, 0.1, 0.9),
    "Adam": lambda parameters: nn.Adam(parameters, 0.01),
    "SGD": lambda parameters: nn.SGD(parameters, 0.1),
    "AdamWeightDecay": lambda parameters: nn.AdamWeightDecay(parameters, 0.01),
    "mint.SGD": lambda parameters: mint.optim.SGD(parameters, lr=0.1),
    "experimental.AdamW": lambda parameters: experimental.AdamW(parameters, lr=0.1),
}


@dataclass(frozen=True)
class Launch:
    """One start of the script, and its end after so many steps of its own (0: it trains to its end).

    `end`: "kill", "raise" in a callback after the step (with `exception_save`), "raise in the next" step, "exit" at a
    request. `way` is how the newest file is gone on from: "exact" (`initial_epoch`, `set_init_step`), "zero"
    (`initial_epoch=0`), "again" (its epoch once more). `late`: rank 1 has so many steps less. `epochs` are those that
    it asks for (None: the script's).
    """

    steps: int = 0
    end: str = "kill"
    way: str = "exact"
    late: int = 0
    epochs: int | None = None


@dataclass(frozen=True)
class Script:
    """What a training script says, and how often it was started."""

    launches: tuple[Launch, ...]
    length: int = 7
    epochs: int = 4
    period: int = 1
    keep: int = 5
    prefix: str = "net"
    optimizer: str = "Momentum"
    cell: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    shuffle: bool = True
    sink_size: int = 0
    ranks: int = 1

    def model(self) -> Model:
        """The model with its initial weights, the same at every start."""
        ms.set_seed(1)
        network = nn.Dense(3, 4)
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        optimizer = OPTIMIZERS[self.optimizer](network.trainable_params())
        if not self.cell:
            return Model(network, loss, optimizer)
        return Model(CELLS[self.cell](nn.WithLossCell(network, loss), optimizer))

    def dataset(self) -> ds.Dataset:
        """The data in the order of its seed."""
        chance = np.random.RandomState(3)
        columns = {
            "x": (8 * chance.rand(2 * self.length, 3)).astype(np.float32),
            "y": chance.randint(0, 4, 2 * self.length).astype(np.int32),
        }
        return ds.NumpySlicesDataset(columns, shuffle=self.shuffle).batch(2)

    def checkpoint(self, directory: Path, *, exception_save: bool = False) -> ModelCheckpoint:
        """Its callback that saves."""
        config = {"save_checkpoint_steps": self.period, "keep_checkpoint_max": self.keep, **self.config}
        if exception_save:
            config["exception_save"] = True
        return ModelCheckpoint(self.prefix, str(directory), CheckpointConfig(**config))

    def train(
        self,
        model: Model,
        dataset: ds.Dataset,
        callbacks: list[Callback],
        initial_epoch: int = 0,
        epochs: int | None = None,
    ) -> None:
        """Train to the last epoch."""
        sinks = {"dataset_sink_mode": True, "sink_size": self.sink_size} if self.sink_size else {}
        model.train(epochs or self.epochs, dataset, callbacks=callbacks, initial_epoch=initial_epoch, **sinks)

    def home(self, directory: Path, rank: int) -> Path:
        """Where a rank saves."""
        return directory if self.ranks == 1 else directory / f"rank_{rank}"


SCRIPTS: dict[str, Script] = {
    "one file": Script((Launch(17),), optimizer="Adam", period=3, keep=1),
    "a prefix that ends in a number": Script((Launch(10), Launch(4)), prefix="net_1", period=2),
    "restarted in mid-epoch": Script((Launch(11), Launch(8), Launch(5)), period=3),
    "restarted, and killed before it saved": Script((Launch(11), Launch(2)), period=3),
    "restarted at an epoch's end with initial_epoch=0": Script(
        (Launch(15), Launch(5, way="zero")), period=7, keep=3, shuffle=False
    ),
    "restarted in mid-epoch with initial_epoch=0": Script((Launch(16), Launch(5, way="zero")), period=2, keep=3),
    "a breakpoint": Script((Launch(10, "raise"),), period=4),
    "nothing but a breakpoint": Script((Launch(3, "raise"),), period=4),
    "restarted from a breakpoint": Script((Launch(10, "raise in the next"), Launch(6)), period=4),
    "a loss scale, updates skipped": Script((Launch(17),), cell="overflowing", period=2),
    "gathered gradients": Script((Launch(17),), cell="accumulating", period=2),
    "an optimizer of mint": Script((Launch(17),), optimizer="mint.SGD", cell="step", period=2),
    "an exit at a request": Script((Launch(12, "exit"),), period=5),
    "sinks on a CPU": Script((Launch(17),), sink_size=3, period=2),
    "safetensors, with appended numbers": Script(
        (Launch(17), Launch(4)), period=2, config={"format": "safetensors", "append_info": ["epoch_num", "step_num"]}
    ),
    "two ranks, one file each": Script((Launch(11), Launch(8)), ranks=2, period=3, keep=1),
    "trained to its end, then for more epochs": Script((Launch(epochs=3),), period=5),
}


@dataclass(frozen=True)
class Tree:
    """What a script left in a directory: the step of each file, and the final weights of who goes on by hand."""

    script: Script
    directory: Path
    steps: Mapping[Path, int]
    final: Weights = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """The newest step of which all ranks have a file; 0 if there is none."""
        homes = [self.script.home(self.directory, rank) for rank in range(self.script.ranks)]
        whole = [step for step in self.steps.values() if all(self.file(home, step) for home in homes)]
        return max(whole, default=0)

    def file(self, home: Path, step: int) -> Path | None:
        """The file of a step below a directory; MindSpore refuses to load one of `OnRequestExit` (mindspore.md §5)."""
        found = [path for path, of in self.steps.items() if of == step and home in path.parents]
        return min(found, key=lambda path: len(path.parts), default=None)

    def copy(self, directory: Path) -> Self:
        """The same files, with the same times, elsewhere."""
        shutil.copytree(self.directory, directory)
        steps = {directory / path.relative_to(self.directory): step for path, step in self.steps.items()}
        return replace(self, directory=directory, steps=steps)

    def gone_on(self) -> Weights:
        """The final weights of who goes on by hand, and knows the newest step."""
        home = self.script.home(self.directory, 0)
        with one_more_training():
            model, dataset = self.script.model(), self.script.dataset()
            load(model, self.file(home, self.newest))
            dataset.set_init_step(self.newest)
            self.script.train(model, dataset, [], self.newest // self.script.length)
        return weights(model)


def load(model: Model, path: Path | None) -> None:
    """Load a checkpoint as plain MindSpore does."""
    ms.load_param_into_net(model.train_network, ms.load_checkpoint(str(path), format=path.suffix[1:]))


def weights(model: Model) -> Weights:
    """Every parameter of a train network but those that ask for an exit."""
    parameters = model.train_network.get_parameters()
    return {each.name: each.asnumpy().tobytes() for each in parameters if not each.name.startswith("graceful")}


@contextmanager
def one_more_training() -> Iterator[None]:
    """Leave MindSpore as it was, whatever ends a training."""
    try:
        yield
    finally:
        _pynative_executor.set_grad_flag(False)
        _pynative_executor.clear_res()


class Clock(Callback):
    """Gives the files of a launch their times, and ends it. `steps` gets the step of each, whatever it is called."""

    def __init__(self, home: Path, steps: dict[Path, int], *, after: int, began: int, last: int, end: str) -> None:
        super().__init__()
        self.home, self.steps, self.done, self.now = home, steps, after, began
        self.left, self.how = last, end
        self.times = {path: path.stat().st_mtime_ns for path in steps if path.exists()}

    def on_train_step_begin(self, run_context: Any) -> None:
        if self.left == 0 and self.how == "raise in the next":
            raise FailedError

    def on_train_step_end(self, run_context: Any) -> None:
        self.done += 1
        self.left -= 1
        self.now += STEP_NS
        self.stamp()
        if self.left == 0 and self.how in ENDS:
            raise ENDS[self.how]

    def stamp(self) -> None:
        """What was written since is of the step that was done last, and of now."""
        for path in sorted(self.home.rglob("*")):
            if path.suffix in (".ckpt", ".safetensors") and self.times.get(path) != path.stat().st_mtime_ns:
                os.utime(path, ns=(self.now, self.now))
                self.times[path] = self.now
                self.steps[path] = self.done


class FlagAt(Callback):
    """Asks for an exit by its file, so that the step with this number is the last."""

    def __init__(self, flag: Path, step: int) -> None:
        super().__init__()
        self.flag, self.left = flag, step

    def on_train_step_begin(self, run_context: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.flag.write_text('{"GracefulExit": 1}')


def make(script: Script, directory: Path) -> Tree:
    """Start the script as often as it says, and keep what it leaves."""
    steps: dict[Path, int] = {}
    with pytest.MonkeyPatch.context() as environment:
        if any(launch.end == "exit" for launch in script.launches):
            environment.setenv("MS_ENABLE_GRACEFUL_EXIT", "1")
        for number, launch in enumerate(script.launches):
            there = Tree(script, directory, {path: step for path, step in steps.items() if path.exists()})
            for rank in range(script.ranks):
                home = script.home(directory, rank)
                began = (10**9 + 10**4 * number) * 10**9 + rank * STEP_NS // 1000
                last = launch.steps - (launch.late if rank else 0)
                clock = Clock(home, steps, after=there.newest, began=began, last=last, end=launch.end)
                _start(there, launch, home, clock)
    left = Tree(script, directory, {path: step for path, step in steps.items() if path.exists()})
    return replace(left, final=left.gone_on())


def _start(there: Tree, launch: Launch, home: Path, clock: Clock) -> None:
    """One rank of one launch, to its end."""
    script = there.script
    model, dataset = script.model(), script.dataset()
    initial_epoch = 0
    if there.newest:
        load(model, there.file(home, there.newest))
        initial_epoch = 0 if launch.way == "zero" else there.newest // script.length
        if launch.way == "exact":
            dataset.set_init_step(there.newest)
    callbacks: list[Callback] = [script.checkpoint(home, exception_save=launch.end.startswith("raise"))]
    if launch.end == "exit":
        flag = home / "flag.json"
        exits = OnRequestExit(file_name="net", directory=str(home / "exits"), save_mindir=False, config_file=str(flag))
        callbacks = [FlagAt(flag, launch.steps), exits, *callbacks]
    handler = signal.getsignal(signal.SIGTERM)
    with one_more_training(), suppress(Killed, FailedError):
        script.train(model, dataset, [*callbacks, clock], initial_epoch, launch.epochs)
    signal.signal(signal.SIGTERM, handler)
    clock.stamp()
