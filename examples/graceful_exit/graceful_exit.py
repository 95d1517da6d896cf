"""The graceful exit tutorial of MindSpore: a training that exits on request, and goes on when it is started again.

    MS_ENABLE_GRACEFUL_EXIT=1 msrun --worker_num=8 --local_worker_num=8 --master_port=10970 --join=True \
        --log_dir=log examples/graceful_exit/graceful_exit.py OUTPUT_DIRECTORY

Request the exit with `{"GracefulExit": 1}` in OUTPUT_DIRECTORY/graceful_exit.json, or with SIGTERM to every rank. The
same command goes on after the last step. ckptstore sets the file back to 0, and never loads the save of an older exit.
The comment `# ckptstore` marks the lines that use ckptstore. On the CPU, start the script with `python`: it runs in one
process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mindspore as ms
from mindspore import dataset as ds
from mindspore import nn
from mindspore.common.initializer import TruncatedNormal
from mindspore.communication import get_rank, init
from mindspore.dataset import transforms, vision
from mindspore.train import Accuracy, LossMonitor, Model
from mindspore.train.callback import OnRequestExit

import ckptstore.mindspore  # ckptstore

EPOCHS = 3


def create_dataset(data_path: Path, batch_size: int = 32) -> ds.Dataset:
    digits = ds.MnistDataset(str(data_path), usage="train")
    digits = digits.map(transforms.TypeCast(ms.int32), "label")
    resize = vision.Resize((32, 32), interpolation=vision.Inter.LINEAR)
    images = [resize, vision.Rescale(1 / 0.3081, -0.1307 / 0.3081), vision.Rescale(1 / 255, 0), vision.HWC2CHW()]
    return digits.map(images, "image").batch(batch_size, drop_remainder=True)


def conv(in_channels: int, out_channels: int, kernel_size: int) -> nn.Cell:
    weight = TruncatedNormal(0.02)
    return nn.Conv2d(in_channels, out_channels, kernel_size, weight_init=weight, has_bias=False, pad_mode="valid")


def fc_with_initialize(input_channels: int, out_channels: int) -> nn.Cell:
    return nn.Dense(input_channels, out_channels, TruncatedNormal(0.02), TruncatedNormal(0.02))


class LeNet5(nn.Cell):
    def __init__(self, num_class: int = 10, channel: int = 1) -> None:
        super().__init__()
        self.conv1 = conv(channel, 6, 5)
        self.conv2 = conv(6, 16, 5)
        self.fc1 = fc_with_initialize(16 * 5 * 5, 120)
        self.fc2 = fc_with_initialize(120, 84)
        self.fc3 = fc_with_initialize(84, num_class)
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


def main(output: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    rank = 0
    if "MS_WORKER_NUM" in os.environ:
        ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
        init()
        rank = get_rank()

    network = LeNet5(10)
    net_opt = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    net_loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, net_loss, net_opt, metrics={"Accuracy": Accuracy()})
    ds_train = create_dataset(output / "data")
    # One directory for each rank: OnRequestExit adds only the device id, and several nodes may have the same ids.
    exit_cb = OnRequestExit(
        file_name="LeNet",
        directory=str(output / "exits" / str(rank)),
        config_file=str(output / "graceful_exit.json"),
    )

    launch = ckptstore.mindspore.join("graceful-exit")  # ckptstore
    start = launch.resume(model, ds_train)  # ckptstore
    model.train(
        EPOCHS,
        ds_train,
        callbacks=[exit_cb, LossMonitor(5), launch.registrar(exit_cb)],  # ckptstore
        initial_epoch=start.initial_epoch,  # ckptstore
        dataset_sink_mode=False,
    )
    if not exit_cb.stop_train:
        ms.save_checkpoint(model.train_network, str(output / f"final_{rank}.ckpt"))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "digits"))
    from data import write_idx

    folder = Path(sys.argv[1]).absolute()
    write_idx(folder / "data")
    main(folder)
