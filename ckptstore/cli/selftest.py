"""`ckptstore selftest`: what holds on this machine, with its device and its MindSpore."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from ckptstore.cli.commands import as_json
from ckptstore.errors import CkptstoreError
from ckptstore.outside import subprocess

_WORDS = {True: "holds", False: "FAILED", None: "not tried"}


@click.command()
@click.option("--ranks", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes, under msrun.")
@click.option("--device", type=click.Choice(["CPU", "GPU", "Ascend"]), default="CPU", show_default=True)
@click.option("--mode", type=click.Choice(["graph", "pynative"]), default="graph", show_default=True)
@as_json
def selftest(*, as_json: bool, **asked: Any) -> int:
    """Save, kill, restore and compare a small training on this machine, kind by kind.

    It takes a minute or two, in a temporary directory with a catalog of its own. Exit code 1: a promise did not hold.
    """
    from ckptstore.cli import terminal, values

    command = [sys.executable, "-m", "ckptstore.mindspore.selftest", json.dumps(asked)]
    rows = []
    last = "it said nothing"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as running:
        for line in running.stdout or ():
            if line.startswith("{"):
                rows.append(json.loads(line))
                if not as_json:
                    row = rows[-1]
                    terminal.line(f"{_WORDS[row['held']]:<9}  {row['promise']}: {row['seen']}")
            else:
                last = line.strip() or last
    if running.returncode or not rows:
        raise CkptstoreError(f"the test itself failed: {last}", "pip install 'ckptstore[mindspore]'")
    if as_json:
        values.write(rows)
    return int(any(row["held"] is False for row in rows))
