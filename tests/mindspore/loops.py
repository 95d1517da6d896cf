"""A small functional training in this process: a network, its optimizer, and a loop over twelve rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore import nn, ops

import ckptstore.mindspore
from ckptstore.mindspore import TrainState
from tests.mindspore.trainings import create_dataset


class Trained:
    """A network, its optimizer, and a step with them. An epoch has six steps."""

    def __init__(self, optimizer: Callable[[Any], Any] | None = None, *, norm: bool = False) -> None:
        self.network = nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4)) if norm else nn.Dense(3, 4)
        self.network.set_train()
        parameters = self.network.trainable_params()
        self.optimizer = optimizer(parameters) if optimizer else nn.Adam(parameters, 0.1)
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.gradients = ops.value_and_grad(lambda x, y: loss(self.network(x), y), None, parameters)

    def step(self, x: Any, y: Any) -> Any:
        loss, gradients = self.gradients(x, y)
        self.optimizer(gradients)
        return loss

    def loop(self, directory: Path, *, launch: Any = None, **asked: Any) -> ckptstore.mindspore.Loop:
        launch = launch or ckptstore.mindspore.join("run")
        asked = {"epochs": 2, "every": 2, "directory": directory, **asked}
        return launch.loop(self.network, self.optimizer, create_dataset(), **asked)

    def train(self, directory: Path, **asked: Any) -> ckptstore.mindspore.Loop:
        """A loop to its end."""
        loop = self.loop(directory, **asked)
        for batch in loop:
            loop.step(loss=self.step(*batch))
        return loop

    def values(self) -> dict[str, bytes]:
        return {name: item.asnumpy().tobytes() for name, item in TrainState(self.network, self.optimizer).named.items()}
