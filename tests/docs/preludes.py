"""What the scripts of the pages leave to their reader: a network, data, a callback, a step of training."""

PRELUDE = """
import sys
import mindspore
import numpy as np
from mindspore import dataset as ds, nn
from mindspore.train import Model, ModelCheckpoint

def make_model():
    network = nn.Dense(3, 4)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True)
    return Model(network, loss, nn.Momentum(network.trainable_params(), 0.1, 0.9))

def make_dataset():
    return ds.NumpySlicesDataset({"x": np.ones((12, 3), np.float32), "y": np.zeros(12, np.int32)}).batch(2)

model, dataset = make_model(), make_dataset()
ckpt_cb = ModelCheckpoint("net", sys.argv[1])
"""
PRELUDE_OF_LOOP = """
network = nn.Dense(3, 4)
optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
def forward(images, labels):
    return loss_fn(network(images), labels)
gradients = mindspore.value_and_grad(forward, None, optimizer.parameters)
def train_step(images, labels):
    loss, given = gradients(images, labels)
    optimizer(given)
    return loss
"""
