"""`ckptstore inspect` of a checkpoint against loading it, and against the safetensors library's own header; and memory.

    python -m bench.inspect_file [--quick]

Of a `.ckpt` of 1 GB: at least 100 times as fast as `mindspore.load_checkpoint`, and the command below 100 MB.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mindspore as ms
import numpy as np
from safetensors import safe_open

from bench.measure import CKPTSTORE, Budget, Found, Row, say, timed, turns
from bench.task import run_alone
from ckptstore.formats.header import Header
from ckptstore.ops.inspect import inspect

TASK = "inspect"
MIB = 1 << 20
SIZES = {1: 16, 32: 100, 1000: 1000}
"""MiB of a file, and how many parameters they are."""
QUICK_SIZES = {1: 16, 32: 100}
LOAD, OPEN = "mindspore.load_checkpoint", "safetensors.safe_open"
FASTER = 100
MEMORY = 100.0
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
"""By a small process of its own: a child's memory counts from the fork, and this one is large."""


def write(work: Path, mebibytes: int, parameters: int) -> tuple[Path, Path]:
    """The same parameters as `.ckpt` and as `.safetensors`."""
    floats = mebibytes * MIB // 4 // parameters
    values = [{"name": f"layer.{n}.weight", "data": ms.Tensor(np.zeros(floats, np.float32))} for n in range(parameters)]
    paths = work / f"{mebibytes}.ckpt", work / f"{mebibytes}.safetensors"
    for path in paths:
        ms.save_checkpoint(values, str(path), format=path.suffix[1:])
    return paths


def inspected(path: Path, parameters: int) -> None:
    """What the command does before it prints."""
    found = inspect(path)
    assert isinstance(found, Header)
    assert len(found.parameters) == parameters


def loaded(path: Path, parameters: int) -> None:
    """What there is without it: the names and shapes of what was loaded."""
    found = {name: (value.dtype, value.shape) for name, value in ms.load_checkpoint(str(path)).items()}
    assert len(found) == parameters


def opened(path: Path, parameters: int) -> None:
    """Names, types and shapes, by the library."""
    with safe_open(str(path), framework="np") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 — not a mapping
        found = {name: (part.get_dtype(), part.get_shape()) for name, part in parts.items()}
    assert len(found) == parameters


def memory(*command: str) -> float:
    """The most memory that a command had, in bytes."""
    return float(subprocess.run([sys.executable, "-c", MEASURE, *command], check=True, capture_output=True).stdout)


def run(work: Path, *, quick: bool) -> Found:
    """All sizes; the budgets are those of the largest."""
    found = Found()
    command = str(Path(sys.executable).with_name("ckptstore"))
    for mebibytes, parameters in (QUICK_SIZES if quick else SIZES).items():
        ckpt, safetensors = write(work, mebibytes, parameters)
        sides: dict[str, tuple[Path, str, Callable[[Path, int], None]]] = {
            "inspect a .ckpt, MiB": (ckpt, LOAD, loaded),
            "inspect a .safetensors, MiB": (safetensors, OPEN, opened),
        }
        for what, (path, name, other) in sides.items():
            taken, _ = turns(
                {
                    CKPTSTORE: partial(timed, partial(inspected, path, parameters)),
                    name: partial(timed, partial(other, path, parameters)),
                }
            )
            found.add(Row(TASK, what, mebibytes, taken))
        load = f"import mindspore, sys; mindspore.load_checkpoint({str(ckpt)!r})"
        used = {
            CKPTSTORE: [memory(command, "inspect", "--json", str(ckpt))],
            LOAD: [memory(sys.executable, "-c", load)],
        }
        found.add(Row(TASK, "memory of a process that looks into a .ckpt, MiB", mebibytes, used, unit="B"))
        faster = found.rows[-3].ratio(LOAD, CKPTSTORE).median
        for path in (ckpt, safetensors):
            path.unlink()
    if quick:
        say("  the budgets are those of 1 GB")
    else:
        found.check(Budget(f"{LOAD} / inspect, of 1 GB", faster, FASTER, at_least=True))
        found.check(Budget("memory of ckptstore inspect, of 1 GB", used[CKPTSTORE][0] / 1e6, MEMORY, unit="MB"))
    return found


if __name__ == "__main__":
    run_alone(run)
