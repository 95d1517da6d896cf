"""The process time of commands: `ckptstore list` of 1,000 saves, and `--help` against that of `mlflow`.

    python -m bench.commands [--quick]

Process time is what the process used of the processors: what else the machine does, does not matter.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

from bench.measure import CKPTSTORE, Budget, Found, Row, say, turns
from bench.peers.ckptstore import Ckptstore
from bench.task import run_alone
from bench.worker import PEERS, environment

TASK = "commands"
SAVES = 1000
QUICK_SAVES = 100
MOST_LIST, MOST_HELP = 0.5, 0.25
QUICK_ALLOWANCE = 5.0


class Commands:
    """Commands that are run in a directory, and what they printed last."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.printed = work / "printed"

    def run(self, *command: str) -> float:
        """The process time of a command, in seconds."""
        with self.printed.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, cwd=self.work, env=environment())
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, command
        return used.ru_utime + used.ru_stime

    def says(self, word: str) -> None:
        """Check what was printed last."""
        assert word in self.printed.read_text(), word


def run(work: Path, *, quick: bool) -> Found:
    """The commands in turn."""
    found = Found()
    commands = Commands(work)
    saves = QUICK_SAVES if quick else SAVES
    (work / "run").mkdir()
    Ckptstore(work / "run", synced=False).fill(saves)
    own = str(Path(sys.executable).with_name("ckptstore"))
    other = str(PEERS.with_name("mlflow"))
    database = str(work / "run" / "catalog.db")

    def listed(*options: str) -> float:
        took = commands.run(own, "--db", database, "list", "run", *options)
        if options:
            assert len(json.loads(commands.printed.read_text())) == saves
        else:
            commands.says(str(saves))
        return took

    def helped(program: str) -> float:
        took = commands.run(program, "--help")
        commands.says("Usage:")
        return took

    say(f"{TASK}: {saves:,} saves to list")
    taken, notes = turns(
        {
            "list": listed,
            "list --json": lambda: listed("--json"),
            "--help": lambda: helped(own),
            "mlflow --help": lambda: helped(other),
        },
        allowance=QUICK_ALLOWANCE if quick else math.inf,
    )
    for way, limit in (("list", MOST_LIST), ("list --json", MOST_LIST)):
        row = found.add(Row(TASK, f"ckptstore {way}, saves", saves, {CKPTSTORE: taken[way]}))
        name = f"process time of ckptstore {way}, {saves:,} saves"
        found.check(Budget(name, row.spread(CKPTSTORE).median, limit, unit="s"))
    noted = {"mlflow": notes["mlflow --help"]} if notes else {}
    row = found.add(Row(TASK, "--help", 1, {CKPTSTORE: taken["--help"], "mlflow": taken["mlflow --help"]}, noted))
    found.check(Budget("process time of ckptstore --help", row.spread(CKPTSTORE).median, MOST_HELP, unit="s"))
    return found


if __name__ == "__main__":
    run_alone(run)
