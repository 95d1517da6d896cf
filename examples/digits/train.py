"""LeNet-5 on handwritten digits, data parallel. After any crash, give the same command again.

    msrun --worker_num=2 --local_worker_num=2 --master_port=18118 --join=True --log_dir=log \
        examples/digits/train.py OUTPUT_DIRECTORY

The comment `# ckptstore` marks the lines that use ckptstore.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
from chaos import Chaos
from data import write_idx
from mindspore import dataset as ds
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init
from mindspore.dataset import transforms, vision
from mindspore.train import LossMonitor, Model

import ckptstore.mindspore

EPOCHS = 2
BATCH = 32


class LeNet5(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, 10)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def construct(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        return self.fc3(x)


def create_dataset(directory: Path, rank: int, ranks: int) -> ds.Dataset:
    digits = ds.MnistDataset(str(directory), usage="train", shuffle=True, num_shards=ranks, shard_id=rank)
    digits = digits.map(transforms.TypeCast(ms.int32), "label")
    images = [vision.Resize((32, 32)), vision.Rescale(1 / 255, 0), vision.Rescale(1 / 0.3081, -0.1307 / 0.3081)]
    return digits.map([*images, vision.HWC2CHW()], "image").batch(BATCH, drop_remainder=True)


def main(output: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    ms.set_seed(1)
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    init()
    rank = get_rank()

    network = LeNet5()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.05, momentum=0.9)
    model = Model(network, loss, optimizer)
    dataset = create_dataset(output / "data", rank, get_group_size())

    launch = ckptstore.mindspore.join("digits")  # ckptstore
    start = launch.resume(model, dataset)  # ckptstore
    saver = launch.saver(output / "checkpoints", every=5, prefix="lenet")  # ckptstore
    callbacks = [LossMonitor(10), Chaos(rank), saver]
    model.train(EPOCHS, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch, dataset_sink_mode=False)
    ms.save_checkpoint(model.train_network, str(output / f"final_{rank}.ckpt"))


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    write_idx(folder / "data")
    main(folder)
