"""`inspect` of a `.ckpt` of 1 GB: at least 100 times as fast as `mindspore.load_checkpoint`, in less than 100 MB.

python -m bench.inspect_file [--quick]
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import mindspore as ms
import numpy as np

from bench.measure import CKPTSTORE, Budget, Found, Row, say, timed, turns
from bench.task import run_alone
from ckptstore.formats.header import Header
from ckptstore.formats.inspect import inspect

TASK = "inspect"
MIB = 1 << 20
SIZE, QUICK_SIZE = 1000, 32
"""The size of a file in MiB. Each parameter has 1 MiB."""
LOAD = "mindspore.load_checkpoint"
FASTER = 100
MEMORY = 100.0
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
"""Runs the command from a small process: a child's peak memory counts from the fork, and this process is large."""


def inspected(path: Path, parameters: int) -> None:
    """The work of the command before it prints."""
    found = inspect(path)
    assert isinstance(found, Header)
    assert len(found.parameters) == parameters


def loaded(path: Path, parameters: int) -> None:
    """The alternative without `inspect`: load the file, and read the names and shapes of the parameters."""
    found = {name: (value.dtype, value.shape) for name, value in ms.load_checkpoint(str(path)).items()}
    assert len(found) == parameters


def memory(*command: str) -> float:
    """The peak memory of a command, in bytes."""
    return float(subprocess.run([sys.executable, "-c", MEASURE, *command], check=True, capture_output=True).stdout)


def run(work: Path, *, quick: bool) -> Found:
    """Measure `inspect` in turns with loading."""
    found = Found()
    size = QUICK_SIZE if quick else SIZE
    path = work / "net.ckpt"
    weights = ms.Tensor(np.zeros(MIB // 4, np.float32))
    ms.save_checkpoint([{"name": f"layer.{n}.weight", "data": weights} for n in range(size)], str(path))
    ways = {CKPTSTORE: partial(inspected, path, size), LOAD: partial(loaded, path, size)}
    taken, _ = turns({who: partial(timed, way) for who, way in ways.items()})
    faster = found.add(Row(TASK, "inspect a .ckpt, MiB", size, taken)).ratio(LOAD, CKPTSTORE).median
    used = {
        CKPTSTORE: [memory(str(Path(sys.executable).with_name("ckptstore")), "inspect", "--json", str(path))],
        LOAD: [memory(sys.executable, "-c", f"import mindspore; mindspore.load_checkpoint({str(path)!r})")],
    }
    found.add(Row(TASK, "memory of a process that looks into a .ckpt, MiB", size, used, unit="B"))
    if quick:
        say("  the budgets are those of 1 GB")
        return found
    found.check(Budget(f"{LOAD} / inspect, of 1 GB", faster, FASTER, at_least=True))
    found.check(Budget("memory of ckptstore inspect, of 1 GB", used[CKPTSTORE][0] / 1e6, MEMORY, unit="MB"))
    return found


if __name__ == "__main__":
    run_alone(run)
