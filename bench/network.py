"""The network for training measurements: LeNet-5 with momentum, on random pictures."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import dataset as ds
from mindspore import nn
from mindspore.train import Model

BATCH = 32


class LeNet5(nn.Cell):
    """LeNet-5 as in MindSpore's tutorials. `ballast` bytes are saved and loaded with it, but not trained."""

    def __init__(self, ballast: int) -> None:
        super().__init__()
        self.ballast = ms.Parameter(np.zeros(ballast // 4, np.float32), "ballast", requires_grad=False)
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, 10)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def construct(self, x: Any) -> Any:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        return self.fc3(x)


def model(ballast: int = 4) -> Model:
    """A new network with its optimizer, not compiled yet."""
    network = LeNet5(ballast)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.01, momentum=0.9)
    return Model(network, loss, optimizer)


def without_ballast(model: Model) -> None:
    """Free the ballast of a network that is no longer needed: MindSpore keeps compiled networks in memory."""
    for parameter in model.train_network.get_parameters():
        if parameter.name == "ballast":
            parameter.set_data(ms.Tensor(np.zeros(1, np.float32)), slice_shape=True)


def dataset(steps: int, **shards: int) -> ds.Dataset:
    """A dataset with so many steps an epoch in each shard."""
    chance = np.random.RandomState(7)
    count = steps * BATCH * shards.get("num_shards", 1)
    columns = {
        "x": chance.rand(count, 1, 32, 32).astype(np.float32),
        "y": chance.randint(0, 10, count).astype(np.int32),
    }
    return ds.NumpySlicesDataset(columns, shuffle=True, **shards).batch(BATCH)


def on_cpu() -> None:
    """Set up MindSpore for a measurement."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    ms.set_seed(1)
