"""Train cells whose optimizer falls behind the batches, and data whose every batch is different."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dataset as ds
from mindspore.train import Model


def varied_dataset() -> ds.Dataset:
    chance = np.random.RandomState(3)
    columns = {"x": (8 * chance.rand(12, 3)).astype(np.float32), "y": chance.randint(0, 4, 12).astype(np.int32)}
    return ds.NumpySlicesDataset(columns, shuffle=False).batch(2)


def with_loss() -> tuple[nn.Cell, nn.Cell]:
    ms.set_seed(1)
    network = nn.Dense(3, 4)
    loss = nn.WithLossCell(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    return loss, nn.Momentum(network.trainable_params(), 0.1, 0.9)


class OnCpu(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's own cell but for the detection of an overflow, whose operators the CPU has not."""

    def start_overflow_check(self, pre_cond: Any, compute_input: Any) -> Any:
        return pre_cond, compute_input

    def get_overflow_status(self, status: Any, compute_output: Any) -> Any:
        finite = [ops.isfinite(grad).all() for grad in compute_output]
        return ops.logical_not(ops.stack(finite).all())


def overflowing() -> Model:
    """A loss scale so large that the first updates are skipped: the optimizer falls behind the batches."""
    scale = nn.DynamicLossScaleUpdateCell(loss_scale_value=2.0**127, scale_factor=8, scale_window=1000)
    return Model(OnCpu(*with_loss(), scale))


class Accumulating(nn.Cell):
    """Gradients of three batches make one update; what is being accumulated is named as MindSpore names it."""

    every = 3

    def __init__(self, network: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.network.set_grad()
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.grad = ops.GradOperation(get_by_list=True)
        self.sums = self.weights.clone(prefix="accu_grads", init="zeros")
        self.count = Parameter(Tensor([0], ms.int32), name="accumulated")

    def construct(self, *inputs: Any) -> Any:
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs)
        for place, grad in enumerate(grads):
            ops.assign_add(self.sums[place], grad)
        self.count += 1
        if self.count == self.every:
            self.optimizer(self.sums)
            for total in self.sums:
                ops.assign(total, ops.zeros_like(total))
            self.count -= self.every
        return loss


def accumulating() -> Model:
    return Model(Accumulating(*with_loss()))
