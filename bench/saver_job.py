"""The script of each rank for `bench.saver`: trains, and waits at each save until all ranks have written theirs."""

from __future__ import annotations

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
from mindspore.train import Callback

import ckptstore.mindspore
from bench import network

EVERY = 5


class Waits(Callback):
    """Measures the time until all ranks have written a save. Must be after the saver. The first save does not count."""

    def __init__(self, saver: Any) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._saver = saver
        self._together = ops.AllReduce()
        self._began = 0.0

    def on_train_step_begin(self, run_context: Any) -> None:  # noqa: ARG002
        self._began = time.perf_counter()

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num % EVERY == 0:
            self._saver._writer.wait()
            self._together(ms.Tensor(np.ones(1, np.float32))).asnumpy()
            self.seconds.append(time.perf_counter() - self._began)
            os.sync()


def main(work: Path, copies: int, ballast: int, saves: int) -> None:
    network.on_cpu()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    init()
    model = network.model(ballast)
    dataset = network.dataset(EVERY * (1 + saves), num_shards=get_group_size(), shard_id=get_rank())
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    saver = launch.saver(work / "saved", every=EVERY, copies=copies or None)
    waits = Waits(saver)
    model.train(1, dataset, callbacks=[saver, waits], dataset_sink_mode=False)
    if get_rank() == 0:
        (work / "taken").write_text(json.dumps({"saves": waits.seconds[1:]}))
        (work / "taken").rename(work / "taken.json")  # the reader never sees a partial file


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
