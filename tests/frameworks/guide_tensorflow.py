"""The guide's res50_model.py (seed 003): what loads is as it is there, the rest as small as it can be.

TensorFlow 1.15 and its Estimators are gone: `tf.contrib.slim` is `tf.compat.v1`, and the session that an Estimator
opens for `--model_dir` is opened here. Each device trains for itself. `--exists` asks TensorFlow, where the guide asks
the file system, whether there is a checkpoint: a prefix is no file.
"""

import argparse
import json
import os

import tensorflow as tf

v1 = tf.compat.v1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_dir")
    parser.add_argument("--restore_path", default="")
    parser.add_argument("--max_train_steps", type=int)
    parser.add_argument("--exists", action="store_true")
    args = parser.parse_args()
    config = {"restore_path": args.restore_path}
    exists = v1.train.checkpoint_exists if args.exists else os.path.exists
    v1.disable_eager_execution()

    global_step = v1.train.get_or_create_global_step()
    weights = v1.get_variable("weights", initializer=tf.constant([1.0, -2.0, 3.0]))
    target = tf.sin(tf.cast(global_step, tf.float32) + tf.range(3.0))
    loss = tf.reduce_sum((weights - target) ** 2)
    train = v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss, global_step=global_step)

    variables_to_restore = v1.global_variables()
    restore_path = config.get("restore_path", "")
    if restore_path and exists(restore_path):
        print(f"load pre-trained model from: {restore_path}")
        v1.train.init_from_checkpoint(restore_path, {v.name.split(":")[0]: v for v in variables_to_restore})

    hooks = [v1.train.StopAtStepHook(last_step=args.max_train_steps)]
    with v1.train.MonitoredTrainingSession(
        checkpoint_dir=args.model_dir, save_checkpoint_steps=10, hooks=hooks, save_summaries_steps=None
    ) as session:
        began = int(session.run(global_step))
        while not session.should_stop():
            session.run(train)
    newest = tf.train.load_checkpoint(args.model_dir)
    print(json.dumps({"began": began, "weights": newest.get_tensor("weights").tolist()}))


main()
