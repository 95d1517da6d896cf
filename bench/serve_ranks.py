"""The ranks that register files for `bench.serve`: each one a file every five seconds, in its own thread.

python -m bench.serve_ranks HOME DATABASE RANKS
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from bench.peers.ckptstore import announced
from ckptstore import connect
from ckptstore.training.rank_launch import RankLaunch

EVERY_SECONDS = 5.0
RUN = f"registering-{os.getpid()}"


class Rank:
    """One rank of a launch."""

    def __init__(self, launch: RankLaunch, directory: Path) -> None:
        self.launch, self.directory = announced(launch, directory), directory
        directory.mkdir(parents=True, exist_ok=True)
        self.step = 0

    def register(self, since: float, seconds: float, taken: list[float]) -> None:
        """Register a file every five seconds, for `seconds`. The ranks are spread evenly over the five seconds."""
        at = since + EVERY_SECONDS * self.launch.rank / self.launch.world_size
        while at < since + seconds:
            time.sleep(max(0.0, at - time.monotonic()))
            self.step += 1
            path = self.directory / f"net-1_{self.step}.ckpt"
            path.write_bytes(b"%8d" % self.step)
            begin = time.perf_counter()
            self.launch.register(path, global_step=self.step)
            taken.append(time.perf_counter() - begin)
            at += EVERY_SECONDS


def main() -> None:
    """Join. At each request, register for the requested time, and answer with the seconds of each record."""
    home, database, world_size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    catalog = connect(database)
    ranks = []
    for rank in range(world_size):
        launch = catalog.join(RUN, rank=rank, world_size=world_size, launch_id="L1")
        if rank == 0:
            launch.resolve()
        ranks.append(Rank(launch, home / f"rank_{rank}"))
    for line in sys.stdin:
        taken: list[float] = []
        asked = (time.monotonic(), json.loads(line)["seconds"], taken)
        threads = [threading.Thread(target=rank.register, args=asked) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(json.dumps({"seconds": taken}), flush=True)


if __name__ == "__main__":
    main()
