"""The checkpoint file that every contender keeps: the same bytes, written in the same way."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tests.ckpt_bytes import value

STEPS_PER_EPOCH = 100
_WEIGHTS = bytes(range(256)) * 16


def content(step: int) -> bytes:
    """A `.ckpt` of 4 KB of weights, the optimizer's counter, and the appended `epoch_num` and `step_num`."""
    return (
        value("weight", "Float32", (32, 32), _WEIGHTS)
        + value("global_step", "Int32", (1,), struct.pack("<i", step))
        + value("epoch_num", "Int64", (), struct.pack("<q", (step - 1) // STEPS_PER_EPOCH + 1))
        + value("step_num", "Int64", (), struct.pack("<q", step))
    )


def name(step: int) -> str:
    """The name that `ModelCheckpoint` gives the file of a step, counted from 1."""
    return f"net-{(step - 1) // STEPS_PER_EPOCH + 1}_{(step - 1) % STEPS_PER_EPOCH + 1}.ckpt"


def write(path: Path, step: int, *, synced: bool) -> None:
    """Write the file as MindSpore does, under another name first. `synced`: it is on the disk when this returns."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        file.write(content(step))
        if synced:
            file.flush()
            os.fsync(file.fileno())
    unfinished.rename(path)
    if synced:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory)
        os.close(directory)
