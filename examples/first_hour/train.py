"""A small job with the three lines that use ckptstore. With KILL_AT=17 it kills itself after step 17."""

import os
import signal
import time

import mindspore
import numpy as np
from mindspore import dataset as ds
from mindspore import nn
from mindspore.train import Callback, Model

import ckptstore.mindspore


class KillAt(Callback):
    """Kills the process, as if the node lost power. First waits until the last save is recorded: steps are short."""

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        if step == int(os.environ.get("KILL_AT", "0")):
            while (step // 5 * 5, "complete") not in recorded():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def recorded():
    return [(file.global_step, file.state) for file in ckptstore.connect().files("first")]


mindspore.set_seed(1)
samples = np.random.default_rng(1).normal(size=(80, 4)).astype(np.float32)
data = {"x": samples, "y": (samples.sum(axis=1) > 0).astype(np.int32)}
dataset = ds.NumpySlicesDataset(data, num_shards=1, shard_id=0).batch(8)  # 10 steps an epoch, shuffled

network = nn.SequentialCell(nn.Dense(4, 16), nn.ReLU(), nn.Dense(16, 2))
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
model = Model(network, loss, nn.Momentum(network.trainable_params(), 0.1, 0.9))

launch = ckptstore.mindspore.join("first")  # 1
start = launch.resume(model, dataset)  # 2
model.train(4, dataset, callbacks=[KillAt(), launch.saver("ckpt", every=5)], initial_epoch=start.initial_epoch)  # 3
print(f"done: {launch.global_step} steps")
