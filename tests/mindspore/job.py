"""A small training job for the tests: one process, 10 steps an epoch, a save every 5 steps.

    python job.py '{"out": "/dir", "fault": "kill 17"}'

Prints START and what `resume` returned, as JSON; writes final.ckpt when training ends.
Faults, N counting the steps of this process: "kill N" (SIGKILL after step N), "raise N" (in a callback after step N),
"raise-before N" (before step N is computed), "bad-dataset" (the pipeline fails at its first batch), "lock-catalog N"
(nobody can write the catalog from step N to the end).
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import dataset as ds
from mindspore import nn
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

import ckptstore.mindspore

DEFAULTS = {"epochs": 3, "fault": "none", "resume": True, "order": "registrar last", "positional": False, "config": {}}


class Fault(Callback):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.action, _, step = fault.partition(" ")
        self.step = int(step or 0)
        self.done = 0

    def on_train_step_begin(self, run_context) -> None:  # type: ignore[no-untyped-def]
        if self.action == "raise-before" and self.done + 1 == self.step:
            raise RuntimeError("fault before the step")

    def on_train_step_end(self, run_context) -> None:  # type: ignore[no-untyped-def]
        self.done += 1
        if self.done == self.step and self.action == "raise":
            raise RuntimeError("fault after the step")
        if self.done == self.step and self.action == "lock-catalog":
            self.lock = sqlite3.connect(os.environ["CKPTSTORE_URL"], isolation_level=None)
            registered = "SELECT count(*) FROM checkpoints WHERE state = 'complete'"
            while self.lock.execute(registered).fetchone() == (0,):
                threading.Event().wait(0.01)  # the save of step 5 is on its way
            self.lock.execute("BEGIN IMMEDIATE")
        if self.done == self.step and self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def create_dataset(fault: str) -> ds.Dataset:
    chance = np.random.RandomState(7)
    columns = {"x": chance.rand(80, 12).astype(np.float32), "y": chance.randint(0, 4, 80).astype(np.int32)}
    dataset = ds.NumpySlicesDataset(columns, shuffle=True)
    if fault == "bad-dataset":
        dataset = dataset.map(lambda _: 1 / 0, input_columns=["x"])
    return dataset.batch(8)


def main(asked: dict) -> None:  # type: ignore[type-arg]
    out = Path(asked["out"])
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    ms.set_seed(1)
    network = nn.SequentialCell(nn.Dense(12, 16), nn.ReLU(), nn.Dense(16, 4))
    optimizer = nn.Adam(network.trainable_params(), learning_rate=0.01)
    model = Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), optimizer)
    dataset = create_dataset(asked["fault"])
    settings = {"save_checkpoint_steps": 5, "keep_checkpoint_max": 50, "exception_save": True, **asked["config"]}
    if settings.pop("weights_only", False):
        settings["saved_network"] = network
    ckpt_cb = ModelCheckpoint("net", str(out / "ckpt"), CheckpointConfig(**settings))

    launch = ckptstore.mindspore.join("run")
    if asked["resume"]:
        start = launch.resume(model, dataset)
        shown = {
            name: getattr(start, name) for name in ("fresh", "global_step", "epoch", "step_in_epoch", "initial_epoch")
        }
        print("START", json.dumps({**shown, "append_info": dict(start.append_info)}), flush=True)
        initial_epoch = start.initial_epoch
    else:
        initial_epoch = 0
    registrar = launch.registrar(ckpt_cb) if asked["order"] != "registrar first, finds them" else launch.registrar()
    callbacks = [Fault(asked["fault"]), ckpt_cb, registrar]
    if asked["order"] != "registrar last":
        callbacks = [registrar, ckpt_cb, Fault(asked["fault"])]
    model.train(asked["epochs"], dataset, callbacks=callbacks, initial_epoch=initial_epoch, dataset_sink_mode=False)
    ms.save_checkpoint(model.train_network, str(out / "final.ckpt"))


if __name__ == "__main__":
    main({**DEFAULTS, **json.loads(sys.argv[1])})
