"""Processes that register are killed at moments nobody chose; afterwards catalog, journals and disk must agree.

    python -m tests.crash.campaign --url URL --kills 1000

Each process joins a launch, resolves, saves and registers in a loop, and prints the path of each file that `register`
returned for. It gets SIGKILL after a random time, in the middle of whatever it does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from ckptstore.core.model import FileState
from ckptstore.ops.connect import connect
from ckptstore.ops.entries import said
from ckptstore.ops.records import Said
from ckptstore.storage import journal

WORKER = """
import os, sys
from pathlib import Path
import ckptstore
from ckptstore.core.model import Kind
from ckptstore.formats.inspect import read_checkpoint
from tests import ckpt_bytes
url, directory, launch_id = sys.argv[1:]
launch = ckptstore.connect(url).join("run", launch_id=launch_id)
launch.set_steps_per_epoch(10)
plan = launch.resolve()
for assignment in plan.ranks if plan else ():
    assert read_checkpoint(Path(assignment.source.path)).optimizer_step == plan.global_step
step = plan.global_step if plan else 0
folder = Path(directory) / "rank_0"
folder.mkdir(parents=True, exist_ok=True)
launch.add_source(str(folder), kind=Kind.PERIODIC, prefix=f"net_{launch_id}", breakpoint_prefix="net", names_before=())
print("BEGAN", flush=True)
while True:
    step += 1
    name = f"net_{launch_id}-{(step - 1) // 10 + 1}_{(step - 1) % 10 + 1}.ckpt"
    draft = folder / f"{name[:-5]}.tmp"
    ckpt_bytes.write(draft, step, step)
    path = folder / name
    os.rename(draft, path)
    launch.register(path, global_step=step, optimizer_step=step)
    print(path, flush=True)
"""


@dataclass
class Outcome:
    """What a campaign did, and what it found wrong."""

    kills: int = 0
    registered: int = 0
    wrong: list[str] = field(default_factory=list)


def campaign(url: str, directory: Path, *, kills: int, seed: int, longest: float = 0.6) -> Outcome:
    """Kill so many processes, one after another, each at a moment of its own within `longest` seconds."""
    chance = random.Random(seed)  # noqa: S311 — moments, not secrets
    outcome = Outcome()
    returned: set[str] = set()
    for number in range(kills):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, url, str(directory), f"L{number:05}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout is not None
        if chance.random() < 0.8:  # else it is killed while it starts
            worker.stdout.readline()
        timer = threading.Timer(chance.uniform(0, longest), worker.send_signal, [signal.SIGKILL])
        timer.start()
        printed, complaints = worker.communicate()
        timer.cancel()
        if worker.returncode != -signal.SIGKILL or "Traceback" in complaints:
            outcome.wrong.append(f"process {number} ended with {worker.returncode}: {complaints[-500:]}")
        returned |= {line for line in printed.splitlines() if line.endswith(".ckpt")}
        outcome.kills += 1
    outcome.registered = len(returned)
    outcome.wrong += differences(url, directory, returned)
    return outcome


def differences(url: str, directory: Path, returned: set[str]) -> list[str]:
    """After `sync`: what the catalog, the journals, the disk and those who registered do not agree on."""
    catalog = connect(url)
    catalog.sync(directory)
    resolution = catalog.resolve("run")
    recorded = {file.path: file for file in catalog.files("run") if file.state is FileState.COMPLETE}
    wrong = [f"register returned for {path}, the catalog lacks it" for path in sorted(returned - recorded.keys())]
    heard = Said()
    for path in journal.journals_below(str(directory)):
        said(journal.read(path).entries, journal.directory_of(path), heard)
    journalled = {file.path for file in heard.files if file.state is FileState.COMPLETE}
    wrong += [f"{path} is in a journal, not in the catalog" for path in sorted(journalled - recorded.keys())]
    wrong += [f"{path} is in the catalog, in no journal" for path in sorted(recorded.keys() - journalled)]
    there = {str(path): path.stat().st_size for path in directory.rglob("*.ckpt")}
    wrong += [f"{path} is on disk, not in the catalog" for path in sorted(there.keys() - recorded.keys())]
    wrong += [f"{path} is not as recorded" for path, file in recorded.items() if there.get(path) != file.size]
    if resolution.plan is None:
        wrong.append("there is no plan")
    elif resolution.plan.global_step != max(file.global_step for file in recorded.values()):
        wrong.append(f"the plan is step {resolution.plan.global_step}, a newer one is whole")
    rebuilt = connect(str(directory.parent / f"rebuilt-{os.getpid()}.db"))
    rebuilt.scan(directory)
    if {file.id for file in rebuilt.files("run")} != {file.id for file in catalog.files("run")}:
        wrong.append("a catalog made anew from the journals has other files")
    return wrong


def main() -> int:
    """Run a campaign and print its result as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="of an empty catalog (default: a new SQLite file)")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        url = asked.url or str(Path(home) / "catalog.db")
        outcome = campaign(url, Path(home) / "ckpt", kills=asked.kills, seed=asked.seed)
    print(json.dumps(outcome.__dict__, indent=2))
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
