"""From "all ranks are started" to the end of the first step after resuming: ckptstore against hand-written loading.

    python -m bench.resume [--quick]

Two ranks under msrun, data parallel, both ways in turns within one launch of MindSpore. Both build the network, find
the newest save, load it and compile; ckptstore also agrees on one plan for all ranks, checks every byte against what
was recorded, and puts the dataset where it was.
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

from bench.measure import CKPTSTORE, REPEATS, Found, Row, say
from bench.task import run_alone
from bench.worker import ROOT, environment
from tests.mindspore.running import free_port

TASK = "resume"
RANKS = 2
QUICK_REPEATS = 1
MOST_SECONDS = 300
LOOK_AGAIN_SECONDS = 0.1


def run(work: Path, *, quick: bool) -> Found:
    """One launch, which measures."""
    repeats = QUICK_REPEATS if quick else REPEATS
    say(f"{TASK}: {RANKS} ranks, {repeats} turns")
    msrun = Path(sys.executable).with_name("msrun")
    workers = [f"--worker_num={RANKS}", f"--local_worker_num={RANKS}", f"--master_port={free_port()}", "--join=True"]
    job = [str(ROOT / "bench" / "resume_job.py"), str(work), str(repeats)]
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
    found = Found()
    seconds = json.loads(taken.read_text())
    found.add(
        Row(
            TASK,
            "to the first step after a restart, ranks",
            RANKS,
            {CKPTSTORE: seconds["ckptstore"], "seeds": seconds["seeds"]},
        )
    )
    found.add(
        Row(
            TASK,
            "of that, without building and compiling, ranks",
            RANKS,
            {CKPTSTORE: seconds["ckptstore loads"], "seeds": seconds["seeds loads"]},
        )
    )
    return found


if __name__ == "__main__":
    run_alone(run)
