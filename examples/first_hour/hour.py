"""Runs the commands of a first hour with ckptstore, and prints a page with their output.

python examples/first_hour/hour.py > docs/tutorial/first-hour.md

All output is real. Fixed values replace times, launch ids, paths, and values that depend on the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).parent
PROGRAMS = {"python": [sys.executable], "ckptstore": [str(Path(sys.executable).with_name("ckptstore"))]}

PAGE = """# A first hour

All output on this page is real, made by [examples/first_hour/hour.py](../../examples/first_hour/hour.py). Ids, paths,
dates, durations, and sizes that depend on the machine are replaced by fixed values. A test compares this page with
what the commands print today.

## Install

In a checkout of ckptstore, in the environment of your MindSpore:

```console
pip install '.[mindspore]'
```

The catalog is a file in your home directory. The first command creates it.

## Three lines

[train.py](../../examples/first_hour/train.py) trains a small network, 4 epochs of 10 steps, and saves every fifth step.
Copy it to a new directory, and type all commands there. Besides the import, it has three lines of ckptstore:

```text
{lines}
```

## It is killed

After step 17 the process is killed, as if the node had lost power:

{killed}
## Look at it

`resolve` shows where the next start goes on, and with `--explain` why. `list` shows all saves; `2_5` is step 5 of
epoch 2:

{why}
{there}
## Start it again

Give the same command. It goes on after step 15, with the next batch:

{again}
{more}
## Free space

`gc` shows its plan, and changes nothing:

{shown}
{applied}
The files are in the trash for a day. `undo` brings them back:

{undone}
## Check everything

{doctor}
Read on in [your own script](your-script.md).
"""


class Hour:
    """A user's home directory. Runs the commands that a user types there, and shows their output."""

    def __init__(self, home: Path, programs: Mapping[str, Sequence[str]]) -> None:
        self._home, self._programs = home, programs
        self._work = home / "first"
        self._work.mkdir()
        shutil.copy(HERE / "train.py", self._work)
        self._launches: dict[str, str] = {}
        unset = ("CKPTSTORE_", "XDG_")
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
        self._environment |= {"HOME": str(home), "GLOG_v": "3", "COLUMNS": "100"}

    def type(self, line: str) -> str:
        """Run a command line; the line and its output, as a block of the page."""
        words = line.split()
        assigned = dict(word.split("=") for word in words if "=" in word and not word.startswith("-"))
        program, *arguments = [word for word in words if word not in {f"{k}={v}" for k, v in assigned.items()}]
        done = subprocess.run(
            [*self._programs[program], *arguments],
            cwd=self._work,
            env=self._environment | assigned,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        said = done.stdout + ("Killed\n" if done.returncode == -signal.SIGKILL else "")
        return f"```console\n$ {line}\n{self._as_shown(said)}```\n"

    def _as_shown(self, text: str) -> str:
        for launch in re.findall(r"\d{8}T\d{6}-[0-9a-f]{6}", text):
            number = len(self._launches) + 1
            self._launches.setdefault(launch, f"20261123T09{number:02}00-{number:06x}")
        for name, shown in self._launches.items():
            text = text.replace(name, shown)
        text = text.replace(str(self._home), "/home/me")
        for pattern, usual in _OF_THE_MACHINE:
            text = re.sub(pattern, usual, text, flags=re.MULTILINE)
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


_OF_THE_MACHINE = (
    (r"\buntil \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "until 2026-11-24 09:05:00Z"),
    (r"\bafter \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "after 2026-11-24 09:15:00Z"),
    (r"(?<!until )(?<!after )\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "2026-11-23 09:05:00Z"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\dZ", "2026-11-23 09:05Z"),
    (r"\d+(\.\d+)? ms\b", "0.5 ms"),
    (r"\b\d+ (s|min) ago", "5 s ago"),
    (r"\d+(\.\d+)? [kMGT]B free", "80.0 GB free"),
    (r"room for .* saves? of", "room for more than 1000 saves of"),
    (r"(catalog\.db): \S+ \wB,", r"\1: 192.5 kB,"),
    (r"Python .*, MindSpore \S+", "Python 3.11, MindSpore 2.10.0"),
    (r"^.*(catalog_disk  ).*$(\n +->.*)?", r"OK       \1ext4, with a write-ahead log"),
    (r"^.*(file_system   .*: ).*$(\n +->.*)?", r"OK       \1ext4"),
    (r"^\d+ problems?, \d+ warnings?$", "0 problems, 0 warnings"),
)


def transcript(home: Path, programs: Mapping[str, Sequence[str]] = PROGRAMS) -> str:
    """The page, with the output of the programs in an empty home directory."""
    hour = Hour(home, programs)
    script = (HERE / "train.py").read_text()
    lines = [line for line in script.splitlines() if re.search(r"# \d$", line)]
    return PAGE.format(
        lines="\n".join(line.strip() for line in lines),
        killed=hour.type("KILL_AT=17 python train.py"),
        why=hour.type("ckptstore resolve first --explain"),
        there=hour.type("ckptstore list first"),
        again=hour.type("python train.py"),
        more=hour.type("ckptstore list first"),
        shown=hour.type("ckptstore gc first --keep-last 3"),
        applied=hour.type("ckptstore gc first --keep-last 3 --apply"),
        undone=hour.type("ckptstore undo first"),
        doctor=hour.type("ckptstore doctor first"),
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.stdout.write(transcript(Path(made).resolve()))
