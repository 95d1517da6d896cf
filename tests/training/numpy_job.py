"""One of two processes that train with NumPy alone, and with ckptstore save and go on.

    python numpy_job.py CATALOG DIRECTORY LAUNCH RANK KILLED_AT

Each has weights of its own, and ends with final.npz. The process kills itself after that step (0: never).
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

import ckptstore

STEPS, EVERY, RANKS = 20, 3, 2


def main(url: str, directory: Path, launch_id: str, rank: int, killed_at: int) -> None:
    launch = ckptstore.connect(url).join("numpy", rank=rank, world_size=RANKS, launch_id=launch_id)
    plan = launch.resolve()
    weights, first = np.full(8, float(rank)), 0
    if plan is not None:
        first = plan.global_step
        with np.load(plan.ranks[rank].source.path) as found:
            weights = found["weights"]
    print("GOES ON AFTER", first, flush=True)
    for step in range(first + 1, STEPS + 1):
        weights = 0.9 * weights + np.random.RandomState(step * RANKS + rank).rand(8)
        if step % EVERY == 0:
            state = {"weights": weights}
            launch.save(
                lambda path, state=state: np.savez(path, **state),
                global_step=step,
                directory=directory / f"rank_{rank}",
                name="model.npz",
            )
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
    np.savez(directory / f"final_{rank}.npz", weights=weights)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
