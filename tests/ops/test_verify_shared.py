"""Several processes verify one run at once, real ones, on both databases; one of them is killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from ckptstore.ops.connect import Catalog

from .jobs import Job

if TYPE_CHECKING:
    from pathlib import Path

PORTION = 3  # files
AHEAD = 2  # portions that a process has claimed at a time
STEPS = 20
OTHERS = 3

WORKER = """
import json, sys, threading
import ckptstore
from ckptstore.ops import to_verify, verifier
url, portion, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
to_verify.MOST_FILES = portion
examine = verifier.examine
lock = threading.Lock()
looked = 0
def listen(file, **how):
    global looked
    with lock:
        looked += 1
        if looked > most:
            print("STUCK", flush=True)
            threading.Event().wait()
        seen = examine(file, **how)
        print(file.path, flush=True)
    return seen
verifier.examine = listen
catalog = ckptstore.connect(url)
print("READY", flush=True)
sys.stdin.readline()
done = catalog.verify("run", digest=True)
print(json.dumps({"checked": done.checked, "own": done.own, "damaged": [each.path for each in done.damaged]}))
"""


def start(url: str, most: int = 10**9) -> subprocess.Popen[str]:
    """A process that verifies, and sticks after it has looked at so many files."""
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, url, str(PORTION), str(most)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "READY\n"
    return worker


def go(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()


def until_stuck(worker: subprocess.Popen[str]) -> list[str]:
    """What it looked at before it stuck."""
    assert worker.stdout is not None
    looked_at: list[str] = []
    while (line := worker.stdout.readline().strip()) != "STUCK":
        assert line, worker.stderr.read() if worker.stderr else ""
        looked_at.append(line)
    return looked_at


def ended(worker: subprocess.Popen[str]) -> tuple[list[str], Any]:
    """What it looked at, and what it reported."""
    printed, complaints = worker.communicate(timeout=300)
    assert (worker.returncode, complaints) == (0, "")
    *looked_at, report = printed.splitlines()
    return looked_at, json.loads(report)


def test_processes_share_and_do_what_a_killed_one_left(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path)
    ranks = job.start()
    for step in range(1, STEPS + 1):
        saved = job.save(ranks, step)
    every = {file.path for file in catalog.files("run")}
    damaged = saved[1].path
    with open(damaged, "r+b") as file:  # noqa: PTH123
        file.seek(40)
        file.write(b"x")
    killed = start(database_url, most=7)
    others = [start(database_url) for _ in range(OTHERS)]
    go(killed)
    before = until_stuck(killed)  # it has done a portion or two, and holds others
    for other in others:
        go(other)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    reports = [ended(other) for other in others]
    looks = Counter([*before, *(path for looked_at, _ in reports for path in looked_at)])
    assert looks.keys() == every
    again = {path for path, count in looks.items() if count > 1}
    assert max(looks.values()) <= 2
    assert len(again) <= PORTION * AHEAD
    assert again <= set(before)
    for _, report in reports:
        assert (report["checked"], report["damaged"]) == (len(every), [damaged])
    recorded = len(before) - len(again)
    assert sum(report["own"] for _, report in reports) == len(every) - recorded


def test_a_killed_one_goes_on_when_it_is_started_again(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    """At once, with nobody beside it: on this host nothing has to lapse."""
    job = Job(catalog, tmp_path)
    ranks = job.start()
    for step in range(1, STEPS + 1):
        job.save(ranks, step)
    killed = start(database_url, most=16)
    go(killed)
    before = until_stuck(killed)
    killed.kill()
    killed.communicate()
    again = start(database_url)
    go(again)
    looked_at, report = ended(again)
    assert report["checked"] == 2 * STEPS
    assert len(before) + len(looked_at) <= 2 * STEPS + PORTION * AHEAD
    assert set(before) | set(looked_at) == {file.path for file in catalog.files("run")}
    assert len(looked_at) < 2 * STEPS
