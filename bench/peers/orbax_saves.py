"""Orbax's asynchronous saves of arrays: how long training waits for one, once the one before is written."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import orbax.checkpoint as ocp


def pauses(home: Path, size: int, saves: int) -> list[float]:
    """The seconds until `save` returns, without the first one."""
    state = {"ballast": np.zeros(size // 4, np.float32)}
    taken = []
    with ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        for step in range(1 + saves):
            begin = time.perf_counter()
            checkpointer.save(home / f"{step}", args=ocp.args.StandardSave(state))
            taken.append(time.perf_counter() - begin)
            checkpointer.wait_until_finished()
            os.sync()
    return taken[1:]


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"pauses": pauses(Path(sys.argv[1]), asked["size"], asked["saves"])}), flush=True)


if __name__ == "__main__":
    main()
