"""A tree as ModelCheckpoint leaves it, for scans."""

import os
from pathlib import Path

from tests import ckpt_bytes

LENGTH = 5
"""Steps of an epoch."""


def save(root: Path, *steps: int, rank: int = 0, prefix: str = "net", at: int = 0) -> list[Path]:
    """What a ModelCheckpoint of a first launch saves; `at` shifts the times of its files, in seconds."""
    home = root / f"rank_{rank}"
    home.mkdir(parents=True, exist_ok=True)
    paths = []
    for step in steps:
        name = f"{prefix}-{(step - 1) // LENGTH + 1}_{(step - 1) % LENGTH + 1}.ckpt"
        paths.append(ckpt_bytes.write(home / name, step))
        os.utime(paths[-1], ns=((at + step) * 10**9, (at + step) * 10**9))
    return paths
