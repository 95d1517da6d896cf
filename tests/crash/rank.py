"""One rank that trains and saves, as far as the recorder can tell: no MindSpore, whose import takes seconds a process.

    python -m tests.crash.rank URL DIRECTORY RANK RANKS SECONDS_BETWEEN_SAVES

It prints READY, begins at the first line that it reads, saves until it reads `enough`, prints what it did as JSON, and
goes on with steps that save nothing until it reads `end`. A step is 10 ms in which the thread sleeps, as one that waits
for a device. What the training thread does at a save is measured: to describe the file and hand it over.
"""

import json
import logging
import select
import sys
import time
from pathlib import Path

from ckptstore.catalog.engine import Database, open_database
from ckptstore.core.model import Kind
from ckptstore.disk import files
from ckptstore.resume.register import describe
from ckptstore.training.recorder_thread import RecorderThread
from ckptstore.training.start import begin
from tests import ckpt_bytes

STEP_SECONDS = 0.01
ANSWER_SECONDS = 5.0
"""As in `ckptstore.mindspore.join`."""


def main() -> None:
    url, directory, rank, ranks, pause = sys.argv[1:]
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    database = Database(open_database(url).url, answer_within=ANSWER_SECONDS)
    launch = begin(database, "run", rank=int(rank), world_size=int(ranks), launch_id="L1", layout=None)
    recorder = RecorderThread(launch)
    folder = Path(directory) / f"rank_{rank}"
    launch.add_source(str(folder), kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
    print("READY", flush=True)
    sys.stdin.readline()
    took: list[float] = []
    control: list[float] = []
    saves = 0
    next_save = time.monotonic() + float(pause) * int(rank) / int(ranks)  # not all in one instant
    while not _is_told():
        time.sleep(STEP_SECONDS)
        if time.monotonic() < next_save:
            continue
        next_save = time.monotonic() + float(pause)
        saves += 1
        draft = ckpt_bytes.write(folder / "draft", saves, saves)
        path = folder / f"net-{saves}_1.ckpt"
        draft.rename(path)
        at, used = time.perf_counter(), time.thread_time()
        found = files.facts(str(path))
        file = describe(
            launch.facts,
            rank=launch.rank,
            path=path,
            kind=Kind.PERIODIC,
            global_step=saves,
            optimizer_step=saves,
            mtime_ns=found.mtime_ns if found else None,
        )
        recorder.submit(file, asynchronous=False)
        took.append(time.perf_counter() - at)
        control.append(_by_the_machine(time.thread_time() - used))
    print(json.dumps({"saves": saves, "took": took, "control": control}), flush=True)
    while not _is_told():
        time.sleep(STEP_SECONDS)
    recorder.close()


def _by_the_machine(busy: float) -> float:
    """How long it takes, in seconds, to do nothing of ours for as much of the processor's time."""
    at, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < busy:
        pass
    return time.perf_counter() - at


def _is_told() -> bool:
    """Whether there is another line to read."""
    return bool(select.select([sys.stdin], [], [], 0)[0]) and sys.stdin.readline() != ""


if __name__ == "__main__":
    main()
