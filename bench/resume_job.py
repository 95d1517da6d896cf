"""The script of each rank for `bench.resume`: trains two epochs, then starts again and again, both ways in turns."""

from __future__ import annotations

import glob
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops
from mindspore.communication import get_group_size, get_rank, init
from mindspore.train import Callback, CheckpointConfig, ModelCheckpoint

import ckptstore.mindspore
from bench import network

RUN = "run"
STEPS = 10
EPOCHS = 2
WARM_UP = 1


class FirstStep(Callback):
    """Notes when the first step ended, and stops the training."""

    at = 0.0

    def on_train_step_end(self, run_context: Any) -> None:
        self.at = time.perf_counter()
        run_context.request_stop()


class Rank:
    """One rank, with its shard of the data."""

    def __init__(self, work: Path, ballast: int) -> None:
        self.ballast = ballast
        self.rank = get_rank()
        self.folder = work / f"rank_{self.rank}"
        self.together = ops.AllReduce()

    def dataset(self) -> Any:
        return network.dataset(STEPS, num_shards=get_group_size(), shard_id=self.rank)

    def train(self) -> None:
        """Train and save the state to resume from."""
        config = CheckpointConfig(save_checkpoint_steps=STEPS, append_info=["epoch_num", "step_num"])
        ckpt_cb = ModelCheckpoint("net", str(self.folder), config)
        launch = ckptstore.mindspore.join(RUN)
        model, dataset = network.model(self.ballast), self.dataset()
        launch.resume(model, dataset)
        model.train(EPOCHS, dataset, callbacks=[ckpt_cb, launch.registrar(ckpt_cb)], dataset_sink_mode=False)
        network.without_ballast(model)

    def by_ckptstore(self, model: Any, dataset: Any) -> int:
        start = ckptstore.mindspore.join(RUN).resume(model, dataset)
        assert start.global_step == EPOCHS * STEPS, start
        return start.initial_epoch

    def by_seeds(self, model: Any, _dataset: Any) -> int:
        """Load as MindSpore's guides do, but into the train network: otherwise the momentum would be lost."""
        ckpt_files = glob.glob(str(self.folder / "*.ckpt"))
        ckpt_files.sort(key=os.path.getmtime, reverse=True)
        param_dict = ms.load_checkpoint(ckpt_files[0])
        ms.load_param_into_net(model.train_network, param_dict)
        assert int(param_dict["step_num"].asnumpy()) == EPOCHS * STEPS
        return int(param_dict["epoch_num"].asnumpy())

    def start(self, way: str) -> tuple[float, float]:
        """The seconds to the end of the first step, and those of the loading alone."""
        load = {"ckptstore": self.by_ckptstore, "seeds": self.by_seeds}[way]
        self.together(ms.Tensor(np.ones(1, np.float32))).asnumpy()
        begin = time.perf_counter()
        model, dataset = network.model(self.ballast), self.dataset()
        loading = time.perf_counter()
        initial_epoch = load(model, dataset)
        loaded = time.perf_counter()
        first = FirstStep()
        model.train(EPOCHS + 1, dataset, callbacks=[first], initial_epoch=initial_epoch, dataset_sink_mode=False)
        network.without_ballast(model)
        return first.at - begin, loaded - loading


def main(work: Path, repeats: int, ballast: int) -> None:
    network.on_cpu()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    init()
    rank = Rank(work, ballast)
    rank.train()
    taken: dict[str, list[float]] = {name: [] for way in ("ckptstore", "seeds") for name in (way, f"{way} loads")}
    for turn in range(WARM_UP + repeats):
        for way in ("ckptstore", "seeds") if turn % 2 else ("seeds", "ckptstore"):
            first_step, loads = rank.start(way)
            if turn >= WARM_UP:
                taken[way].append(first_step)
                taken[f"{way} loads"].append(loads)
    if rank.rank == 0:
        (work / "taken").write_text(json.dumps(taken))
        (work / "taken").rename(work / "taken.json")  # the reader never sees a partial file


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
