"""A tree as ModelCheckpoint leaves it, for scans."""

import os
from pathlib import Path
from typing import Any
from zlib import crc32

from ckptstore.core.classify import classify
from ckptstore.core.model import Content, Kind
from ckptstore.evidence.unregistered import FoundFile
from tests import ckpt_bytes

LENGTH = 5
"""Steps of an epoch."""


def save(root: Path, *steps: int, rank: int = 0, prefix: str = "net", at: int = 0) -> list[Path]:
    """What a ModelCheckpoint of a first launch saves; `at` shifts the times of its files, in seconds.

    Another root is another training: its weights differ.
    """
    home = root / f"rank_{rank}"
    home.mkdir(parents=True, exist_ok=True)
    paths = []
    for step in steps:
        name = f"{prefix}-{(step - 1) // LENGTH + 1}_{(step - 1) % LENGTH + 1}.ckpt"
        paths.append(ckpt_bytes.write(home / name, step, weight=crc32(str(root).encode()) % 1000))
        os.utime(paths[-1], ns=((at + step) * 10**9, (at + step) * 10**9))
    return paths


def save_by_mindformers(output: Path, *steps: int, relaunch: str = "", at: int = 0) -> None:
    """What CheckpointMonitor saves with its defaults: states, and their weights once more beside them."""
    for rank in range(2):
        for step in steps:
            place = f"{(step - 1) // LENGTH + 1}_{(step - 1) % LENGTH + 1}"
            prefix = f"llama_rank_{rank}{relaunch}"
            path = ckpt_bytes.write(output / "checkpoint" / f"rank_{rank}" / f"{prefix}-{place}.ckpt", step)
            stamp(path, at + step)
            for kind, name in (("network", "network"), ("trainable", "trainable_params")):
                weights = output / f"checkpoint_{kind}" / f"rank_{rank}" / f"{prefix}-{name}-{place}.ckpt"
                weights.parent.mkdir(parents=True, exist_ok=True)
                weights.write_bytes(ckpt_bytes.value("weight", "Float32", (1,), b"1234"))
                stamp(weights, at + step)


def stamp(path: Path, second: int) -> None:
    os.utime(path, ns=(second * 10**9, second * 10**9))


def unregistered(path: str, beside: dict[str, set[str]], **content: Any) -> FoundFile:
    """A file as a scan reads it: what its path says, and what is in it; `beside` are the prefixes in its directory."""
    named = classify(path.split("/")[1:], beside)
    return FoundFile(
        path=path,
        kind=named.kind or Kind.PERIODIC,
        content=Content.FULL,
        format="ckpt",
        family=named.family,
        relaunch=named.relaunch,
        rank=named.rank,
        epoch=named.epoch,
        step_in_epoch=named.step_in_epoch,
        named_step=named.named_step,
        size=100,
        **content,
    )
