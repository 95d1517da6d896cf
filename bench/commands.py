"""The process time of `ckptstore list` of 1,000 saves and of `ckptstore --help`. Neither imports mindspore.

    python -m bench.commands [--quick]

Process time is the processor time of the process, so other work on the machine hardly changes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from bench.measure import CKPTSTORE, Budget, Found, Row, say, turns
from bench.peers.ckptstore import RUN, Ckptstore
from bench.task import run_alone
from bench.worker import environment

TASK = "commands"
SAVES, QUICK_SAVES = 1000, 100
MOST_LIST, MOST_HELP = 0.4, 0.15
PROGRAM = str(Path(sys.executable).with_name("ckptstore"))


def process_time(printed: Path, word: str, *arguments: str) -> float:
    """The process time of a command, in seconds; it must print the word."""
    with printed.open("wb") as out:
        process = subprocess.Popen([PROGRAM, *arguments], stdout=out, env=environment())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    assert word in printed.read_text(), word
    return used.ru_utime + used.ru_stime


def frameworks(*arguments: str) -> int:
    """The number of modules of mindspore that a command imports."""
    command = [sys.executable, "-X", "importtime", PROGRAM, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert "ckptstore.errors" in imported
    return sum(name.partition(".")[0] == "mindspore" for name in imported)


def run(work: Path, *, quick: bool) -> Found:
    """Measure the commands in turns."""
    found = Found()
    saves = QUICK_SAVES if quick else SAVES
    say(f"{TASK}: {saves:,} saves to list")
    (work / "run").mkdir()
    Ckptstore(work / "run", synced=False).fill(saves)
    listed = ("--db", str(work / "run" / "catalog.db"), "list", RUN)
    commands = {
        f"list, {saves:,} saves": (MOST_LIST, str(saves), listed),
        f"list --json, {saves:,} saves": (MOST_LIST, f'"global_step": {saves}', (*listed, "--json")),
        "--help": (MOST_HELP, "Usage:", ("--help",)),
    }
    ways = {
        name: partial(process_time, work / "printed", word, *arguments)
        for name, (_, word, arguments) in commands.items()
    }
    taken, _ = turns(ways)
    for name, (most, _, _) in commands.items():
        row = found.add(Row(TASK, f"ckptstore {name}, process time", 1, {CKPTSTORE: taken[name]}))
        found.check(Budget(f"process time of ckptstore {name}", row.spread(CKPTSTORE).median, most, unit="s"))
    imported = sum(frameworks(*arguments) for _, _, arguments in commands.values())
    found.check(Budget("modules of mindspore that these commands import", imported, 0, unit=""))
    return found


if __name__ == "__main__":
    run_alone(run)
