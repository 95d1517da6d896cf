"""A job of two nodes for the tests of a bucket."""

from pathlib import Path

from ckptstore.api import Catalog
from ckptstore.core.model import Checkpoint
from tests import ckpt_bytes


def saved(catalog: Catalog, nodes: Path, steps: int, size: int) -> list[Checkpoint]:
    """Two ranks, each on a disk of its own, save files of so many bytes; those of the last step."""
    ranks = [catalog.join("run", rank=rank, world_size=2, launch_id="L1", layout="stand_alone") for rank in (0, 1)]
    files: list[Checkpoint] = []
    for step in range(1, steps + 1):
        files = []
        for launch in ranks:
            path = nodes / f"node{launch.rank}" / f"net-1_{step}.ckpt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(ckpt_bytes.value("weight", "UInt8", (size,), bytes([step, launch.rank]) * (size // 2)))
            files.append(launch.register(str(path), global_step=step))
    return files
