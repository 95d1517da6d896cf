"""Random layers of a training that begins anew in the middle."""

from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore import nn, ops

from ckptstore.mindspore.random_layers import complaint, seed_step


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.none = nn.Dropout(p=0.5), nn.Dropout(p=0.5), nn.Dropout(p=0.0)

    def construct(self, x: Any) -> Any:
        return self.one(x), self.other(x), ops.dropout(x, 0.5), ops.randn(1000)


class Channels(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout2d(p=0.5)

    def construct(self, x: Any) -> Any:
        return self.drop(x)


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)


def draws(first: int, *, seeds: bool) -> list[list[bytes]]:
    """What each step from `first` to step 4 draws, in a training that begins there."""
    ms.set_seed(1)
    network = Network()
    network.set_train()
    before = np.random.get_state()[1].tolist(), ds.config.get_seed()
    drawn = []
    for step in range(first, 5):
        if seeds:
            seed_step(network, 1, step)
        drawn.append([each.asnumpy().tobytes() for each in network(ms.Tensor(np.ones(1000, np.float32)))])
    assert before == (np.random.get_state()[1].tolist(), ds.config.get_seed())
    return drawn


def test_layers__before_drew_other_numbers__now_the_same() -> None:
    assert draws(3, seeds=False) != draws(1, seeds=False)[2:]
    whole = draws(1, seeds=True)
    assert draws(3, seeds=True) == whole[2:]
    assert len({each for step in whole for each in step}) == 4 * 4


def test_what_is_said_of_a_network() -> None:
    assert complaint(Network()) == ""
    assert complaint(Channels()) == "random layers (drop: Dropout2d) draw other numbers after a restart"
    ms.set_context(mode=ms.GRAPH_MODE)
    told = "random layers (the network: Network, one: Dropout, other: Dropout) draw other numbers after a restart"
    assert complaint(Network()) == f"{told} in graph mode"
    assert complaint(nn.Dense(2, 2)) == ""
    network = nn.Dropout(p=0.5)
    before = network.dropout
    seed_step(network, 1, 1)
    assert network.dropout is before
