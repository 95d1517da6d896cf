"""A training in TensorFlow that follows the recovery example of the Ascend guide. Rank R saves with prefix `ckptR`.

    RANK=0 WORLD_SIZE=2 CKPTSTORE_LAUNCH_ID=… python examples/tensorflow/train.py OUTPUT_DIRECTORY

All ranks get the same launch id, and each start gets a new one. Each rank trains its own model, and all ranks go on
after the same step. Start the script again after any crash. The comment `# ckptstore` marks the lines that use
ckptstore.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import ckptstore  # ckptstore

STEPS, BATCH, SAMPLES = 30, 8, 80


class Model(tf.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        chance = np.random.default_rng(rank)
        self.hidden = tf.Variable(chance.normal(size=(12, 32)).astype(np.float32))
        self.out = tf.Variable(chance.normal(size=(32, 4)).astype(np.float32))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ self.hidden) @ self.out


def main(output: Path, killed_at: int) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    chance = np.random.default_rng(7)
    data = chance.random((SAMPLES, 12), np.float32)
    labels = (data.sum(1) * 4 % 4).astype(np.int32)
    model = Model(rank)
    moments = [tf.Variable(tf.zeros_like(each)) for each in model.trainable_variables]
    checkpoint = tf.train.Checkpoint(model=model, moments=moments)

    launch = ckptstore.connect().join("tensorflow", rank=rank, world_size=ranks)  # ckptstore
    plan = launch.resolve()  # ckptstore
    done = 0
    if plan is not None:  # ckptstore
        done = plan.global_step  # ckptstore
        checkpoint.read(plan.ranks[rank].source.path).assert_consumed()  # ckptstore
    print(f"rank {rank} goes on after step {done}", flush=True)

    for step in range(done + 1, STEPS + 1):
        chosen = np.random.default_rng(step * ranks + rank).choice(SAMPLES, BATCH, replace=False)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[chosen], model(data[chosen]))
            loss = tf.reduce_mean(losses)
        for variable, moment, gradient in zip(
            model.trainable_variables, moments, tape.gradient(loss, model.trainable_variables), strict=True
        ):
            moment.assign(0.9 * moment + gradient)
            variable.assign_sub(0.1 * moment)
        if step % 5 == 0:
            launch.save(  # ckptstore
                checkpoint.write, global_step=step, directory=output / f"rank_{rank}", name=f"ckpt{rank}"
            )
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
    np.save(output / f"final_{rank}.npy", np.concatenate([each.numpy().ravel() for each in model.trainable_variables]))


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    main(folder, int(os.environ.get("KILLED_AT", "0")))
