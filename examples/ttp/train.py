"""The TTP tutorial of MindSpore, with the hand-written search for the checkpoint replaced by `resume`.

On a cluster with MindIO TTP and MS_ENABLE_TFT='{TTP:1}', the same command starts four ranks, and starts them again
after a fault:

    msrun --worker_num=4 --local_worker_num=4 --master_port=10970 --join=False --log_dir=msrun_log \
        examples/ttp/train.py OUTPUT_DIRECTORY

The script does not need the tutorial's `--is_recover`, `cur_epoch = 2`, `cur_step = 1215`, or the file name made of
them. The comment `# ckptstore` marks the lines that use ckptstore. Without an Ascend device, the script uses a stand-in
for MindIO's controller (`stand_in.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
import stand_in
from mindspore import Parameter, nn, ops, train
from mindspore import dataset as ds
from mindspore.common.initializer import HeUniform, initializer
from mindspore.communication import get_rank, init
from mindspore.dataset import transforms, vision

import ckptstore.mindspore  # ckptstore

HAS_ASCEND = ms.get_context("device_target") == "Ascend"
EPOCHS = 2


class MatMulCell(nn.Cell):
    def __init__(self, shape: tuple[int, int] = (28 * 28, 64)) -> None:
        super().__init__()
        self.param = Parameter(initializer(HeUniform(5**0.5), shape), name="param")
        self.matmul = ops.MatMul()

    def construct(self, x):
        return self.matmul(x, self.param)


class Network(nn.Cell):
    """The tutorial's network, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.layer1 = MatMulCell()
        self.layer2 = nn.Dense(64, 128)
        self.layer3 = nn.Dense(128, 10)
        self.relu = nn.ReLU()

    def construct(self, x):
        x = self.relu(self.layer1(self.flatten(x)))
        return self.layer3(self.relu(self.layer2(x)))


def create_dataset(directory: Path, batch_size: int) -> ds.Dataset:
    dataset = ds.MnistDataset(str(directory), usage="train")
    images = [vision.Rescale(1.0 / 255.0, 0), vision.Normalize(mean=(0.1307,), std=(0.3081,)), vision.HWC2CHW()]
    dataset = dataset.map(images, "image").map(transforms.TypeCast(ms.int32), "label")
    return dataset.batch(batch_size, drop_remainder=True)


def main(output: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    init()

    network = Network()
    optimizer = nn.Momentum(network.trainable_params(), 1e-2, 0.9)
    if HAS_ASCEND:
        optimizer = nn.OptTFTWrapper(optimizer)
        fault_tolerance = train.TrainFaultTolerance
    else:
        fault_tolerance = stand_in.install()
    model = ms.Model(network, nn.CrossEntropyLoss(), optimizer)
    dataset = create_dataset(output / "data", 64)
    tft_cb = fault_tolerance(ckpt_save_path=str(output / "ttp_checkpoints"))

    launch = ckptstore.mindspore.join("ttp")  # ckptstore
    start = launch.resume(model, dataset)  # ckptstore
    model.train(
        EPOCHS,
        dataset,
        callbacks=[train.LossMonitor(10), tft_cb, launch.registrar(tft_cb)],  # ckptstore
        initial_epoch=start.initial_epoch,  # ckptstore
        dataset_sink_mode=HAS_ASCEND,
    )
    ms.save_checkpoint(model.train_network, str(output / f"final_{get_rank()}.ckpt"))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "digits"))
    from data import write_idx

    folder = Path(sys.argv[1]).absolute()
    write_idx(folder / "data")
    main(folder)
