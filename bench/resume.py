"""From "all ranks are started" to the end of the first step after resuming: ckptstore against hand-written loading.

    python -m bench.resume [--quick]

Two ranks under msrun, data parallel, both ways in turns within one launch of MindSpore. Both build the network, find
the newest save, load it and compile; ckptstore also agrees on one plan for all ranks, checks every byte against what
was recorded, and puts the dataset where it was.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.measure import CKPTSTORE, REPEATS, Found, Row, say
from bench.task import run_alone
from bench.worker import ROOT, environment
from tests.mindspore.running import free_port

TASK = "resume"
RANKS = 2
QUICK_REPEATS = 2
MOST_SECONDS = 300


def run(work: Path, *, quick: bool) -> Found:
    """One launch, which measures."""
    repeats = QUICK_REPEATS if quick else REPEATS
    say(f"{TASK}: {RANKS} ranks, {repeats} turns")
    msrun = Path(sys.executable).with_name("msrun")
    workers = [f"--worker_num={RANKS}", f"--local_worker_num={RANKS}", f"--master_port={free_port()}", "--join=True"]
    job = [str(ROOT / "bench" / "resume_job.py"), str(work), str(repeats)]
    path = f"{msrun.parent}:{environment()['PATH']}"
    done = subprocess.run(
        [str(msrun), *workers, f"--log_dir={work / 'log'}", *job],
        env=environment() | {"PATH": path, "CKPTSTORE_URL": str(work / "catalog.db")},
        cwd=work,
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    taken = work / "taken.json"
    assert taken.exists(), done.stdout + done.stderr + (work / "log" / "worker_0.log").read_text()[-3000:]
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
