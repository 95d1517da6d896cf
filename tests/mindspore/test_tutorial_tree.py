"""The tree that MindSpore's own tutorial on fault recovery leaves is adopted, and gone on from with the five lines.

Its script is run as it is, but for paths, a seed and fewer epochs of a smaller dataset.
"""

import os
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import nn
from mindspore.common.initializer import Normal
from mindspore.dataset import MnistDataset, transforms, vision
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.errors import RefusedError

pytestmark = pytest.mark.long

EPOCHS, BROKEN = 4, 2
LENGTH = 28


class myCallback(Callback):  # noqa: N801 — as the tutorial has it
    def __init__(self, break_epoch_num: int = BROKEN) -> None:
        super().__init__()
        self.epoch_num = 0
        self.break_epoch_num = break_epoch_num

    def epoch_end(self, run_context: object) -> None:
        self.epoch_num += 1
        if self.epoch_num == self.break_epoch_num:
            raise Exception("Some errors happen.")  # noqa: TRY002


class LeNet5(nn.Cell):
    def __init__(self, num_class: int = 10, num_channel: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_channel, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120, weight_init=Normal(0.02))
        self.fc2 = nn.Dense(120, 84, weight_init=Normal(0.02))
        self.fc3 = nn.Dense(84, num_class, weight_init=Normal(0.02))
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def construct(self, x):
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        return self.fc3(x)


def write_digits(directory: Path) -> Path:
    """Images of 28 x 28 by chance, as MnistDataset reads them: LENGTH batches of 4."""
    directory.mkdir()
    chance = np.random.default_rng(0)
    for name, magic, values in (
        ("train-images-idx3-ubyte", 0x803, chance.integers(0, 256, (4 * LENGTH, 28, 28), np.uint8)),
        ("train-labels-idx1-ubyte", 0x801, chance.integers(0, 10, 4 * LENGTH, np.uint8)),
    ):
        header = np.array([magic, *values.shape], dtype=">i4").tobytes()
        (directory / name).write_bytes(header + values.tobytes())
    return directory


def create_dataset(data_path: Path, batch_size: int = 4) -> mindspore.dataset.Dataset:
    train_dataset = MnistDataset(str(data_path), shuffle=False)
    image_transfroms = [vision.Rescale(1.0 / 255.0, 0), vision.Resize(size=(32, 32)), vision.HWC2CHW()]
    train_dataset = train_dataset.map(image_transfroms, input_columns="image")
    train_dataset = train_dataset.map(transforms.TypeCast(mindspore.int32), input_columns="label")
    return train_dataset.batch(batch_size, drop_remainder=True)


def create_model() -> tuple[LeNet5, Model]:
    mindspore.set_seed(1)
    net = LeNet5()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optim = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    return net, Model(net, loss_fn=loss, optimizer=optim)


def saving(directory: Path) -> ModelCheckpoint:
    append_info = ["epoch_num", "step_num", {"lr": 0.01, "momentum": 0.9}]
    return ModelCheckpoint(prefix="lenet", directory=str(directory), config=CheckpointConfig(append_info=append_info))


def final(model: Model) -> dict[str, bytes]:
    return {each.name: each.asnumpy().tobytes() for each in model.train_network.get_parameters()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_digits(tmp_path / "MNIST_Data")


def fail(data: Path, directory: Path) -> None:
    """The tutorial's first part: training fails at the end of an epoch, and the last five files are there."""
    _, model = create_model()
    with pytest.raises(Exception, match="Some errors happen"):
        model.train(EPOCHS, create_dataset(data), callbacks=[saving(directory), myCallback()], dataset_sink_mode=True)


def test_what_the_tutorial_leaves_is_gone_on_from(catalog: Catalog, data: Path, tmp_path: Path) -> None:
    _, calm = create_model()
    calm.train(EPOCHS, create_dataset(data), dataset_sink_mode=True)
    fail(data, tmp_path / "lenet")
    done = catalog.scan(tmp_path / "lenet", run="run")
    assert [file.global_step for file in done.adopted] == [52, 53, 54, 55, 56]
    _, model = create_model()
    dataset, ckpoint_cb = create_dataset(data), saving(tmp_path / "lenet")
    launch = ckptstore.mindspore.join("run")
    start = launch.resume(model, dataset)
    assert start.global_step == BROKEN * LENGTH
    registrar = launch.registrar(ckpoint_cb)
    model.train(EPOCHS, dataset, callbacks=[ckpoint_cb, registrar], initial_epoch=start.initial_epoch)
    assert final(model) == final(calm)


def test_what_its_own_recovery_leaves_is_never_taken_for_what_it_is_not(
    catalog: Catalog, data: Path, tmp_path: Path
) -> None:
    """It loads into the network alone: the optimizer, and its counter, begin anew. A start stops and asks."""
    fail(data, tmp_path / "lenet")
    ckpt_path = str(tmp_path / "lenet")
    ckptnames = [ckpt for ckpt in os.listdir(ckpt_path) if ckpt.endswith(".ckpt")]  # noqa: PTH208
    ckptnames.sort(key=lambda ckpt: os.path.getctime(ckpt_path + "/" + ckpt))  # noqa: PTH205
    param_dict = mindspore.load_checkpoint(ckpt_path + "/" + ckptnames[-1])
    net, model = create_model()
    mindspore.load_param_into_net(net, param_dict)
    epoch_num = int(param_dict["epoch_num"].asnumpy())
    ckpoint_cb = saving(tmp_path / "lenet")
    model.train(EPOCHS, create_dataset(data), callbacks=ckpoint_cb, initial_epoch=epoch_num, dataset_sink_mode=True)
    left = final(model)
    done = catalog.scan(tmp_path / "lenet", run="run")
    assert {Path(each.path).name for each in done.uncertain} >= {f"lenet_1-4_{step}.ckpt" for step in range(24, 29)}
    _, again = create_model()
    dataset = create_dataset(data)
    with pytest.raises(RefusedError, match=rf"lenet_1-4_{LENGTH}\.ckpt"):
        ckptstore.mindspore.join("run").resume(again, dataset)
    catalog.scan(tmp_path / "lenet", run="run", steps_per_epoch=LENGTH)
    with pytest.raises(RefusedError, match=rf"--step .*lenet_1-4_{LENGTH}\.ckpt=STEP places it"):
        ckptstore.mindspore.join("run").resume(again, dataset)
    catalog.scan(tmp_path / "lenet", run="run", steps={f"lenet_1-4_{LENGTH}.ckpt": EPOCHS * LENGTH})
    start = ckptstore.mindspore.join("run").resume(again, dataset)
    assert start.global_step == EPOCHS * LENGTH
    assert final(again) == left
