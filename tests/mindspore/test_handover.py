"""A state that was exported here and imported there: training goes on bit for bit, and its weights are loaded."""

import random
import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore import nn
from mindspore.train import Callback, Model, ReduceLROnPlateau

import ckptstore.mindspore
from ckptstore.api import Catalog, connect
from tests.conftest import new_postgres_database
from tests.mindspore.running import Run
from tests.mindspore.trainings import Job, RaiseAt, saving, values

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "hand-over.md"


class Noise(Callback):
    """Draws from the random numbers of the process after each step: a run that begins them anew ends elsewhere."""

    def on_train_step_end(self, run_context: object) -> None:
        model = run_context.original_args().train_network
        weight = next(each for each in model.get_parameters() if each.name == "fc.weight")
        ms.ops.assign(weight, weight + np.random.normal() * 1e-3)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(3, 4)
        self.bn = nn.BatchNorm1d(4)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.bn(self.fc(x))


def create() -> tuple[Model, ds.Dataset]:
    network = Net()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    chance = np.random.RandomState(3)
    columns = {"x": chance.rand(24, 3).astype(np.float32), "y": chance.randint(0, 4, 24).astype(np.int32)}
    dataset = ds.NumpySlicesDataset(columns, shuffle=True).batch(2)
    return Model(network, loss, nn.Adam(network.trainable_params(), 0.01)), dataset


def train(run: str, directory: Path, *more: Callback) -> Model:
    """Three epochs of 12 steps, from where the run goes on, in a process that has drawn other numbers before."""
    ms.set_seed(1)
    random.seed(1)
    np.random.seed(1)
    job = Job(*create(), launch=ckptstore.mindspore.join(run))
    ckpt_cb = saving(directory)
    heard = ReduceLROnPlateau(monitor="loss", patience=1, min_delta=10)
    callbacks = [Noise(), ckpt_cb, heard, *more, job.registrar(ckpt_cb)]
    if more:
        job.fail(*callbacks, epochs=3)
    else:
        job.train(*callbacks, epochs=3)
    return job.model


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Another catalog."""
    if request.param == "sqlite":
        return str(tmp_path / "there.db")
    return new_postgres_database(request.getfixturevalue("postgres"))


@pytest.mark.long  # tests/handover shows the same but for the training
def test_training_goes_on_elsewhere_bit_for_bit(
    url: str, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in the middle of the second epoch; what it has saved since is not taken along."""
    whole = train("whole", tmp_path / "whole")
    train("run", tmp_path / "here", RaiseAt(19))
    catalog.export("run@16", tmp_path / "out.tar")
    with connect(url) as there:
        there.import_(tmp_path / "out.tar", tmp_path / "there", run="anns")
    monkeypatch.setenv("CKPTSTORE_URL", url)
    (tmp_path / "here").rename(tmp_path / "not here")
    model = train("anns", tmp_path / "goes on")
    assert connect(url).history("anns")[-1].launch.parent_step == 16
    wanted = values(whole)
    assert {name for name, value in values(model).items() if not np.array_equal(value, wanted[name])} == set()


@pytest.mark.long
@pytest.mark.msrun
def test_shares_of_two_ranks_go_on_elsewhere(tmp_path: Path, postgres: str) -> None:
    """Each rank has a part of the state; one is killed, and another cluster goes on."""
    asked = {"ranks": 2, "config": {"remove_redundancy": True, "exception_save": False}}
    calm, here = Run(tmp_path / "calm"), Run(tmp_path / "here")
    there = Run(tmp_path / "there", new_postgres_database(postgres))
    assert calm.launch(**asked).code == 0
    assert here.launch(fault="kill 12", rank=1, **asked).code != 0
    exported = here.catalog.export("run", tmp_path / "out.tar")
    assert (exported.global_step, exported.holds) == (10, "share")
    (tmp_path / "here").rename(tmp_path / "not here")
    there.catalog.import_(tmp_path / "out.tar", tmp_path / "imported")
    there.again(step=10, **asked)
    assert [there.final(rank) for rank in (0, 1)] == [calm.final(rank) for rank in (0, 1)]


@pytest.mark.long
def test_weights_load_into_a_network_by_name(catalog: Catalog, tmp_path: Path) -> None:
    model = train("run", tmp_path / "here")
    catalog.export("run", tmp_path / "weights", weights_only=True)
    catalog.export("run", tmp_path / "state", format="safetensors")
    path = str(next((tmp_path / "weights").rglob("*.safetensors")))
    loaded = ms.load_checkpoint(path, format="safetensors")
    network = Net()
    assert {item.name for item in network.get_parameters()} == set(loaded)
    assert ms.load_param_into_net(network, loaded, strict_load=True) == ([], [])
    trained = values(model)
    for item in network.get_parameters():
        assert np.array_equal(item.asnumpy(), trained[item.name])
    path = str(next((tmp_path / "state").rglob("*.safetensors")))
    assert trained.keys() <= ms.load_checkpoint(path, format="safetensors").keys()


@pytest.mark.long
def test_the_recipe_for_mindir(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page has it, with the network and the data of this test, and a run with that metric."""
    model = train("digits", tmp_path / "here")
    catalog.tag("digits", 36, "best")
    (recipe,) = re.findall(r"```python\n(network.*?MINDIR.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    images = np.ones((4, 3), np.float32)
    given = {"LeNet": Net, "images": images, "ckptstore": ckptstore, "mindspore": ms}
    exec(recipe.replace("@best:accuracy:max", "@best"), given)  # noqa: S102 — it is ours
    graph = nn.GraphCell(ms.load("lenet.mindir"))
    expected = given["network"].set_train(False)(ms.Tensor(images[:1]))
    assert np.allclose(graph(ms.Tensor(images[:1])).asnumpy(), expected.asnumpy())
    trained = values(model)
    assert all(np.array_equal(item.asnumpy(), trained[item.name]) for item in given["network"].get_parameters())
