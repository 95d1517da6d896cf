"""Small trainings in this process: a network, its data, and callbacks that end or watch a training."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore import nn
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint
from mindspore.train.callback import OnRequestExit

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.mindspore.launch import TrainingLaunch


def create_model(
    width: int = 4, optimizer: type = nn.Momentum, *, network: Any = None, cell: Any = None, **asked: Any
) -> Model:
    """One layer, or a network of the test's own; `cell` is its train network where it is not MindSpore's."""
    network = network or nn.Dense(3, width)
    settings = {"momentum": 0.9} if optimizer is nn.Momentum else {}
    chosen = optimizer(network.trainable_params(), learning_rate=0.1, **settings)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return Model(cell(nn.WithLossCell(network, loss), chosen)) if cell else Model(network, loss, chosen, **asked)


def without_counter(model: Model) -> Model:
    """As with an optimizer of mint: nothing that is read in its files tells them apart."""
    for parameter in model.train_network.get_parameters():
        if parameter.name == "global_step":
            parameter.name = "step_t"
    return model


def create_dataset(batch: int = 2) -> ds.Dataset:
    return ds.NumpySlicesDataset({"x": np.ones((12, 3), np.float32), "y": np.zeros(12, np.int32)}, shuffle=False).batch(
        batch
    )


def poisoned(step: int, steps: int = 12) -> ds.Dataset:
    """The batch of this step makes the loss infinite, and the weights no numbers."""
    x = np.ones((2 * steps, 3), np.float32)
    x[2 * (step - 1) : 2 * step] = np.inf
    return ds.NumpySlicesDataset({"x": x, "y": np.zeros(2 * steps, np.int32)}, shuffle=False).batch(2)


def saving(directory: Path, prefix: Any = "net", **config: Any) -> ModelCheckpoint:
    """It saves every second step, and deletes nothing."""
    settings = {"save_checkpoint_steps": 2, "keep_checkpoint_max": 50, **config}
    return ModelCheckpoint(prefix, str(directory), CheckpointConfig(**settings))


def leaving(directory: Path) -> OnRequestExit:
    flag = str(directory / "flag.json")
    return OnRequestExit(file_name="net", directory=str(directory), save_mindir=False, config_file=flag)


class Job:
    """A launch in this process, which has asked where to start."""

    def __init__(
        self, model: Model | None = None, dataset: ds.Dataset | None = None, *, launch: Any = None, **asked: Any
    ) -> None:
        self.model = create_model() if model is None else model
        self.dataset = create_dataset() if dataset is None else dataset
        self.launch = launch or ckptstore.mindspore.join("run")
        self.start = self.launch.resume(self.model, self.dataset, **asked)

    def registrar(self, *callbacks: Callback, **settings: Any) -> ckptstore.mindspore.Registrar:
        return self.launch.registrar(*callbacks, **settings)

    def train(self, *callbacks: Callback, epochs: int = 1) -> None:
        """From where the launch starts to the end of that epoch."""
        self.model.train(epochs, self.dataset, callbacks=[*callbacks], initial_epoch=self.start.initial_epoch)

    def fail(self, *callbacks: Callback, epochs: int = 1) -> None:
        """One of the callbacks raises on purpose."""
        with pytest.raises(RuntimeError, match="on purpose"):
            self.train(*callbacks, epochs=epochs)


def train(model: Model, directory: Path, *more: Callback, steps: int = 2) -> None:
    """The next epoch in a launch of its own, whose every save stays."""
    job = Job(model)
    ckpt_cb = saving(directory, save_checkpoint_steps=steps)
    job.train(*more, ckpt_cb, job.registrar(ckpt_cb), epochs=job.start.initial_epoch + 1)


def trained(directory: Path, *more: Callback, epochs: int = 1, **settings: Any) -> Any:
    """One launch, its registrar last and finding what saves; where it started."""
    job = Job()
    job.train(saving(directory / "ckpt"), *more, job.registrar(**settings), epochs=epochs)
    return job.start


def to_step_12(directory: Path, **asked: Any) -> tuple[int, bytes]:
    """One launch to the end of its second epoch: where it started, and its end."""
    job = Job(**asked)
    ckpt_cb = saving(directory / "ckpt")
    job.train(ckpt_cb, job.registrar(ckpt_cb), epochs=2)
    ms.save_checkpoint(job.model.train_network, str(directory / "end.ckpt"))
    return job.start.global_step, (directory / "end.ckpt").read_bytes()


def values(model: Model) -> dict[str, Any]:
    """The parameters of the train network, by name."""
    return {item.name: item.asnumpy().copy() for item in model.train_network.get_parameters()}


def assert_same(found: Model, expected: Model) -> None:
    """Every parameter of the train networks, bit for bit."""
    wanted = values(expected)
    assert {name for name, value in values(found).items() if not np.array_equal(value, wanted[name])} == set()


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ckptstore" and record.levelno > 20]


class DoAt(Callback):
    """Does something after step `step` of this training."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        super().__init__()
        self.left, self.action = step, action

    def on_train_step_end(self, run_context: object) -> None:
        self.left -= 1
        if self.left == 0:
            self.action()


def on_purpose() -> None:
    raise RuntimeError("on purpose")


class RaiseAt(DoAt):
    """An exception in a callback."""

    def __init__(self, step: int) -> None:
        super().__init__(step, on_purpose)


class ExitAt(DoAt):
    """Asks for an exit by a signal."""

    def __init__(self, step: int) -> None:
        super().__init__(step, lambda: os.kill(os.getpid(), signal.SIGTERM))


class SetFlagAt(DoAt):
    """Asks for an exit by its file."""

    def __init__(self, flag: Path, step: int) -> None:
        super().__init__(step, lambda: flag.write_text('{"GracefulExit": 1}'))


def fail(catalog: Catalog, directory: Path, steps: int, save_steps: int = 100, **settings: Any) -> None:
    """One launch that raises after `steps` steps of its own."""
    job = Job()
    ckpt_cb = saving(directory, save_checkpoint_steps=save_steps)
    job.fail(RaiseAt(steps), ckpt_cb, job.registrar(ckpt_cb, save_on_exception=True, **settings), epochs=9)


def gasps(catalog: Catalog) -> list[tuple[int, str]]:
    return [(file.global_step, Path(file.path).name) for file in catalog.files("run", kind="dying_gasp")]


class FirstCounter(Callback):
    """What the optimizer's counter is when the first step begins: which state training starts from."""

    updates: int | None = None

    def on_train_step_begin(self, run_context: Any) -> None:
        if self.updates is None:
            network = run_context.original_args().train_network
            counter = next(item for item in network.get_parameters() if item.name == "global_step")
            self.updates = int(counter.asnumpy()[0])


def two_ranks(catalog: Catalog) -> list[TrainingLaunch]:
    launches = [catalog.join("run", rank=rank, world_size=2, launch_id="L1") for rank in range(2)]
    return [TrainingLaunch(each.database, each.facts, each.rank) for each in launches]
