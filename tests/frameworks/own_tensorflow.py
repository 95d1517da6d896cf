"""A script of TensorFlow that saves in both ways, and goes on where the catalog says: own_tensorflow.py STEPS."""

import json
import sys
from pathlib import Path

import tensorflow as tf

import ckptstore

step, weights = tf.Variable(0, dtype=tf.int64), tf.Variable([1.0, 2.0])
checkpoint = tf.train.Checkpoint(step=step, weights=weights)

launch = ckptstore.connect().join("own")
plan = launch.resolve()
began = 0
if plan is not None:
    checkpoint.read(plan.ranks[0].source.path).assert_consumed()
    began = plan.global_step
Path("saved").mkdir(exist_ok=True)
for _ in range(int(sys.argv[1])):
    weights.assign(weights * 1.5)
    step.assign_add(1)
    name, done = f"at{step.numpy()}", int(step.numpy())
    if done % 2:
        launch.save(checkpoint.write, global_step=done, directory="saved", name=name)
    else:
        launch.register(checkpoint.write(str(Path("saved") / name)), global_step=done)
print(json.dumps([began, int(step.numpy()), weights.numpy().tolist()]))
