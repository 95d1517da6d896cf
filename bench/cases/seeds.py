"""What a restart gets from the hand-written script, and from `keep_checkpoint_max`."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
from mindspore import dataset as ds
from mindspore import nn
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint

from bench import files
from bench.cases.case import (
    KEEP,
    KILLED,
    LAUNCHES,
    NAME_LIES,
    NEWEST_CUT,
    RANK_MISSING,
    RESTARTS,
    SAVES,
    WRONG,
    Judged,
    cut,
    die,
    killed,
    left,
    main,
    refused,
    went_on,
)
from bench.peers.seeds import Seeds

RANKS = 4


def _keeper(home: Path, saves: int = SAVES) -> Seeds:
    keeper = Seeds(home, synced=True)
    keeper.fill(saves)
    return keeper


def newest_cut(home: Path) -> Judged:
    keeper = _keeper(home)
    cut(home / "ckpt" / files.name(SAVES))
    try:
        return went_on(keeper.newest(), SAVES - 1, "the newest by its time")
    except Exception as error:  # noqa: BLE001 — whatever it raises, a person has to look
        return refused(error, "and at every start again, until somebody deletes the file")


def dying(home: Path) -> None:
    with mock.patch("os.remove", die):
        Seeds(home, synced=True).prune(KEEP)


def killed_between(home: Path) -> Judged:
    keeper = _keeper(home, 2 * KEEP)
    killed(dying, home)
    keeper.prune(KEEP)
    return left(
        sorted(keeper.steps()), list(range(KEEP + 1, 2 * KEEP + 1)), [], "it has no marks: the next run deletes"
    )


def restarts(home: Path) -> Judged:
    """`ModelCheckpoint` with `keep_checkpoint_max`, trained five times, as after five restarts."""
    network = nn.Dense(3, 4)
    model = Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True), nn.SGD(network.trainable_params()))
    columns = {"x": np.ones((SAVES, 3), np.float32), "y": np.zeros(SAVES, np.int32)}
    for _ in range(LAUNCHES):
        config = CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=KEEP)
        ckpt_cb = ModelCheckpoint("net", str(home / "ckpt"), config)
        model.train(1, ds.NumpySlicesDataset(columns).batch(1), callbacks=[ckpt_cb], dataset_sink_mode=False)
    found = sorted(path.name for path in (home / "ckpt").glob("*.ckpt"))
    if len(found) == KEEP:
        return left([], [], [], f"{KEEP} files are left")
    return Judged(WRONG, f"{len(found)} files are left where {KEEP} were asked for: each launch counts its own")


def rank_missing(home: Path) -> Judged:
    """Each rank looks for its own newest file."""
    steps = []
    for rank in range(RANKS):
        own = home / f"rank_{rank}"
        own.mkdir()
        steps.append(_keeper(own, SAVES - (rank == RANKS - 1)).newest())
    said = ", ".join(f"rank {rank} loads step {step}" for rank, step in enumerate(steps))
    if set(steps) == {SAVES - 1}:
        return went_on(SAVES - 1, SAVES - 1, said)
    return Judged(WRONG, f"{said}: no state that ever was")


def name_lies(home: Path) -> Judged:
    """The files as after a copy of the directory, which gives them new times in the order of their names."""
    (home / "ckpt").mkdir()
    for name, step in (("net_1-3_3.ckpt", 30), ("net_1-3_9.ckpt", 26)):
        files.write(home / "ckpt" / name, step, synced=True)
    return went_on(Seeds(home, synced=True).newest(), 30, "the newest by its time, after a copy of the directory")


if __name__ == "__main__":
    main(
        {
            NEWEST_CUT: newest_cut,
            KILLED: killed_between,
            RESTARTS: restarts,
            RANK_MISSING: rank_missing,
            NAME_LIES: name_lies,
        }
    )
