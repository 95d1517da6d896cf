"""A training of data-parallel ranks as people write it without ckptstore; and the same with the five lines added.

    python plain_job.py '{"out": "/dir", "kill": 12}'

8 steps an epoch, a save every 3, five kept. `kill`: SIGKILL after so many steps of this process (0: never). `load` is
the name of the file that every rank goes on from by hand, and `step` the one it is of. `five_lines`: the catalog says
where to go on. Writes final_R.ckpt when training ends.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import dataset as ds
from mindspore import nn
from mindspore.communication import get_rank, init
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

LENGTH, EPOCHS = 8, 4


class Kill(Callback):
    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def on_train_step_end(self, run_context: object) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main(asked: dict[str, Any]) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    ms.set_seed(1)
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    init()
    rank = get_rank()
    network = nn.SequentialCell(nn.Dense(12, 16), nn.ReLU(), nn.Dense(16, 4))
    optimizer = nn.Adam(network.trainable_params(), learning_rate=0.01)
    model = Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), optimizer)
    chance = np.random.RandomState(7)
    columns = {"x": chance.rand(64, 12).astype(np.float32), "y": chance.randint(0, 4, 64).astype(np.int32)}
    dataset = ds.NumpySlicesDataset(columns, shuffle=True, num_shards=2, shard_id=rank).batch(64 // 2 // LENGTH)
    home = Path(asked["out"]) / "ckpt" / f"rank_{rank}"
    ckpt_cb = ModelCheckpoint("net", str(home), CheckpointConfig(save_checkpoint_steps=3, keep_checkpoint_max=5))
    callbacks = [ckpt_cb]
    initial_epoch = 0
    if asked.get("load"):
        ms.load_param_into_net(model.train_network, ms.load_checkpoint(str(home / asked["load"])))
        dataset.set_init_step(asked["step"])
        initial_epoch = asked["step"] // LENGTH
    if asked.get("five_lines"):
        import ckptstore.mindspore

        launch = ckptstore.mindspore.join("run")
        start = launch.resume(model, dataset)
        print("START", start.global_step, flush=True)
        initial_epoch = start.initial_epoch
        callbacks.append(launch.registrar(ckpt_cb))
    callbacks.append(Kill(asked.get("kill", 0)))
    model.train(EPOCHS, dataset, callbacks=callbacks, initial_epoch=initial_epoch, dataset_sink_mode=False)
    ms.save_checkpoint(model.train_network, str(Path(asked["out"]) / f"final_{rank}.ckpt"))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
