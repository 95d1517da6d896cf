"""Random layers of a training that starts over in the middle."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore import nn, ops

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.catalog import leases, reads
from ckptstore.mindspore import random_layers
from ckptstore.mindspore.compat import GLOBAL_SEED
from ckptstore.mindspore.random_layers import complaint, seed_step
from tests.mindspore.trainings import Job, create_dataset, create_model, saving


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


class Own(nn.Dropout2d):
    """A layer of a script: of its code only MindSpore's part draws."""

    def construct(self, x: Any) -> Any:
        return super().construct(x) * 2


@pytest.fixture(autouse=True)
def _mode(set_mode: Callable[[int], None]) -> None:
    set_mode(ms.PYNATIVE_MODE)


def draws(first: int, *, seeds: bool) -> list[list[bytes]]:
    """What each step from `first` to step 4 draws, in a training that begins there."""
    ms.set_seed(1)
    network = Network()
    network.set_train()
    before = np.random.get_state()[1].tolist(), ds.config.get_seed()
    drawn = []
    for step in range(first, 5):
        if seeds:
            seed_step([network], 1, 0, step)
        drawn.append([each.asnumpy().tobytes() for each in network(ms.Tensor(np.ones(1000, np.float32)))])
    assert before == (np.random.get_state()[1].tolist(), ds.config.get_seed())
    return drawn


def test_layers__before_drew_other_numbers__now_the_same() -> None:
    assert draws(3, seeds=False) != draws(1, seeds=False)[2:]
    whole = draws(1, seeds=True)
    assert draws(3, seeds=True) == whole[2:]
    assert len({each for step in whole for each in step}) == 4 * 4


def test_what_is_said_of_a_network() -> None:
    layers = "random layers (the network: Network, one: Dropout, other: Dropout) draw other numbers after a restart"
    assert complaint([Network()], repeats=True) == ""
    helps = "with repeat_random=True from the first start on they draw the same"
    assert complaint([Network()], repeats=False) == f"{layers}; {helps}"
    assert complaint([Channels()], repeats=True) == "random layers (drop: Dropout2d) draw other numbers after a restart"
    assert complaint([Own()], repeats=True) == "random layers (the network: Own) draw other numbers after a restart"
    ms.set_context(mode=ms.GRAPH_MODE)
    told = "graph mode cannot restore their state; PyNative mode with repeat_random=True can"
    assert complaint([Network()], repeats=True) == f"{layers}: {told}"
    assert complaint([nn.Dense(2, 2)], repeats=False) == ""
    network = nn.Dropout(p=0.5)
    before = network.dropout
    seed_step([network], 1, 0, 1)
    assert network.dropout is before


def test_ranks_draw_each_their_own() -> None:
    drawn = set()
    for rank in range(2):
        seed_step([], 1, rank, 1)
        drawn.add(ops.randn(1000).asnumpy().tobytes())
    assert len(drawn) == 2


class Dropping(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.drop = nn.Dense(3, 4), nn.Dropout(p=0.5)

    def construct(self, x: Any) -> Any:
        return self.drop(self.dense(x))


@pytest.mark.usefixtures("catalog")
@pytest.mark.parametrize("kind", ["model", "loop"])
def test_a_resumed_training_draws_what_an_undisturbed_one_does(tmp_path: Path, kind: str) -> None:
    """Two launches of a process, of 6 steps and of the rest, against one of 12."""
    ends = []
    for name, stops in (("calm", [2]), ("rough", [1, 2])):
        ms.set_seed(1)
        for epochs in stops:
            network = Dropping()
            model = create_model(network=network)
            launch = ckptstore.mindspore.join(f"{kind} {name}")
            if kind == "model":
                dataset, ckpt_cb = create_dataset(), saving(tmp_path / name)
                start = launch.resume(model, dataset, repeat_random=True)
                callbacks = [ckpt_cb, launch.registrar(ckpt_cb)]
                model.train(epochs, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch)
                ends.append(b"".join(each.asnumpy().tobytes() for each in model.train_network.get_parameters()))
                continue
            optimizer = model.train_network.optimizer
            gradients = ops.value_and_grad(model.train_network.network, None, optimizer.parameters)
            asked = {"epochs": epochs, "every": 2, "directory": tmp_path / name, "repeat_random": True}
            loop = launch.loop(network, optimizer, create_dataset(), **asked)
            for batch in loop:
                loss, given = gradients(*batch)
                optimizer(given)
                loop.step(loss=loss)
            ends.append(b"".join(each.asnumpy().tobytes() for each in optimizer.get_parameters()))
    assert ends[0] == ends[2]


def test_a_mindspore_without_its_module_of_seeds_loses_no_record(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the training was given up before its saves were recorded."""
    job = Job(repeat_random=True)
    monkeypatch.setattr(random_layers, "GLOBAL_SEED", replace(GLOBAL_SEED, owner="mindspore.common.gone"))
    job.train(saving(tmp_path / "ckpt"), job.registrar())
    monkeypatch.undo()
    assert [file.global_step for file in catalog.files("run")] == [6, 4, 2]
    with catalog.database.read() as connection:
        assert leases.last_sign(connection, reads.run_id(connection, "run") or 0) is None
