"""The quick start of MindSpore's tutorials, on handwritten digits. After any crash, give the same command again.

    python examples/functional/train.py OUTPUT_DIRECTORY

The comment `# ckptstore` marks the lines that use ckptstore.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore
from mindspore import nn
from mindspore.dataset import MnistDataset, transforms, vision

import ckptstore.mindspore  # ckptstore

EPOCHS = 3
BATCH = 64


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.dense_relu_sequential = nn.SequentialCell(
            nn.Dense(28 * 28, 512), nn.ReLU(), nn.Dense(512, 512), nn.ReLU(), nn.Dense(512, 10)
        )

    def construct(self, x):
        x = self.flatten(x)
        return self.dense_relu_sequential(x)


def datapipe(path: Path, *, shuffle: bool) -> MnistDataset:
    image_transforms = [
        vision.Rescale(1.0 / 255.0, 0),
        vision.Normalize(mean=(0.1307,), std=(0.3081,)),
        vision.HWC2CHW(),
    ]
    label_transform = transforms.TypeCast(mindspore.int32)
    dataset = MnistDataset(str(path), shuffle=shuffle)
    dataset = dataset.map(image_transforms, "image")
    dataset = dataset.map(label_transform, "label")
    return dataset.batch(BATCH)


def main(output: Path) -> None:
    mindspore.set_device("CPU")
    mindspore.set_seed(1)
    train_dataset = datapipe(output / "data", shuffle=True)
    test_dataset = datapipe(output / "data", shuffle=False)

    model = Network()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = nn.SGD(model.trainable_params(), 1e-2)

    def forward_fn(data, label):
        logits = model(data)
        loss = loss_fn(logits, label)
        return loss, logits

    grad_fn = mindspore.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    def train_step(data, label):
        (loss, _), grads = grad_fn(data, label)
        optimizer(grads)
        return loss

    def test() -> None:
        model.set_train(False)
        correct = total = 0
        for data, label in test_dataset.create_tuple_iterator():
            total += len(data)
            correct += int((model(data).argmax(1) == label).sum())
        print(f"Test: accuracy {correct / total:.1%}", flush=True)
        model.set_train()

    launch = ckptstore.mindspore.join("functional")  # ckptstore
    loop = launch.loop(  # ckptstore
        model, optimizer, train_dataset, epochs=EPOCHS, directory=output / "checkpoints", every=10
    )
    model.set_train()
    for data, label in loop:  # ckptstore
        loss = train_step(data, label)
        loop.step(loss=loss)  # ckptstore
        if loop.step_in_epoch % 10 == 0:
            print(f"epoch {loop.epoch} step {loop.step_in_epoch}: loss {float(loss.asnumpy()):.4f}", flush=True)
        if loop.ends_epoch:
            test()
    mindspore.save_checkpoint(model, str(output / "model.ckpt"))


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    sys.path.insert(0, str(Path(__file__).parents[1] / "digits"))
    from data import write_idx

    write_idx(folder / "data")
    main(folder)
