"""Writes checkpoints in all of TensorFlow's ways, and prints what whole numbers TensorFlow finds in each."""

import json
from pathlib import Path

import tensorflow as tf

v1 = tf.compat.v1
WHOLE = (tf.int32, tf.int64)


def numbers(prefix: str) -> dict[str, int]:
    reader = tf.train.load_checkpoint(prefix)
    types = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return {key: int(reader.get_tensor(key)) for key in types if types[key] in WHOLE and not shapes[key]}


def objects() -> list[str]:
    """As TensorFlow's guide does it: its step is one ahead of the optimizer's counter."""
    net = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3)])
    optimizer, step = tf.keras.optimizers.Adam(0.1), tf.Variable(1)
    checkpoint = tf.train.Checkpoint(step=step, optimizer=optimizer, net=net)
    manager = tf.train.CheckpointManager(checkpoint, "managed", max_to_keep=3)
    saved = []
    for _ in range(2):
        for _ in range(5):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(net(tf.ones((2, 4))) ** 2)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True)
            )
            step.assign_add(1)
        saved += [manager.save(), checkpoint.write(f"written/at{step.numpy()}")]
    net.compile(optimizer, "mse")
    counted = tf.train.Checkpoint(model=net, iteration=tf.Variable(10, dtype=tf.int64))
    return [*saved, checkpoint.save("named/model.ckpt"), counted.write("counted/ckpt0")]


def graph() -> list[str]:
    with tf.Graph().as_default():
        global_step = v1.train.get_or_create_global_step()
        weights = v1.get_variable("weights", [2], partitioner=v1.fixed_size_partitioner(2))
        loss = tf.reduce_sum(tf.convert_to_tensor(weights) ** 2)
        train = v1.train.AdamOptimizer(0.1).minimize(loss, global_step=global_step)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(7):
                session.run(train)
            Path("graph").mkdir()
            return [v1.train.Saver().save(session, "graph/model.ckpt", global_step=global_step)]


def large() -> list[str]:
    """Many variables: the table has several blocks."""
    many = [tf.Variable([float(place)], name="weights") for place in range(9000)]
    checkpoint = tf.train.Checkpoint(layer_of_a_network=many, step=tf.Variable(1 << 40, dtype=tf.int64))
    return [checkpoint.write("large/ckpt0")]


print(json.dumps({prefix: numbers(prefix) for prefix in (*objects(), *graph(), *large())}))
