"""The time from "all ranks are started" to the end of the first step: at most 1.05 times a script that only loads.

    python -m bench.resume [--quick]

Two data-parallel ranks run under msrun. Both ways take turns within one launch of MindSpore, with small files and with
1 GB a rank. Both build the network, find the newest save, load it and compile. ckptstore also agrees on one plan for
all ranks, compares the file with its record, and restores the position in the dataset.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bench.measure import CKPTSTORE, REPEATS, Budget, Found, Row, say
from bench.task import run_alone
from bench.worker import ROOT, environment
from tests.postgres_server import free_port

TASK = "resume"
RANKS = 2
QUICK_REPEATS = 1
SIZES = {"small files": 4, "1 GB a rank": 10**9}
QUICK_SIZES = {"small files": 4, "100 MB a rank": 10**8}
"""The bytes in each rank's file in addition to the network's."""
BUDGET = 1.05
MOST_SECONDS = 600
LOOK_AGAIN_SECONDS = 0.1


def launched(script: str, ranks: int, work: Path, *given: int) -> dict[str, list[float]]:
    """Run a launch of so many ranks; the seconds that rank 0 measured."""
    work.mkdir()
    msrun = Path(sys.executable).with_name("msrun")
    workers = [f"--worker_num={ranks}", f"--local_worker_num={ranks}", f"--master_port={free_port()}", "--join=True"]
    job = [str(ROOT / "bench" / script), str(work), *map(str, given)]
    path = f"{msrun.parent}:{environment()['PATH']}"
    taken = work / "taken.json"
    log = work / "log"
    deadline = time.monotonic() + MOST_SECONDS
    with subprocess.Popen(
        [str(msrun), *workers, f"--log_dir={log}", *job],
        env=environment() | {"PATH": path, "CKPTSTORE_URL": str(work / "catalog.db")},
        cwd=work,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as launch:
        while not taken.exists() and launch.poll() is None and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_SECONDS)
        with suppress(ProcessLookupError):  # msrun takes ten seconds to end after its ranks have
            os.killpg(launch.pid, signal.SIGKILL)
    assert taken.exists(), "".join(path.read_text()[-3000:] for path in sorted(log.glob("*.log")))
    seconds: dict[str, list[float]] = json.loads(taken.read_text())
    return seconds


def run(work: Path, *, quick: bool) -> Found:
    """Measure in one launch for each size."""
    found = Found()
    repeats = QUICK_REPEATS if quick else REPEATS
    for size, ballast in (QUICK_SIZES if quick else SIZES).items():
        say(f"{TASK}: {RANKS} ranks, {size}, {repeats} turns")
        seconds = launched("resume_job.py", RANKS, work / size, repeats, ballast)
        loads = {who: seconds[f"{who} loads"] for who in (CKPTSTORE, "seeds")}
        whole = {who: seconds[who] for who in (CKPTSTORE, "seeds")}
        row = found.add(Row(TASK, f"to the first step after a restart, {size}, ranks", RANKS, whole))
        found.add(Row(TASK, f"of that, without building and compiling, {size}, ranks", RANKS, loads))
        name = f"from all ranks started to the first step, {size} / a script that only loads"
        found.check(Budget(name, row.ratio(CKPTSTORE, "seeds").median, BUDGET))
    return found


if __name__ == "__main__":
    run_alone(run)
