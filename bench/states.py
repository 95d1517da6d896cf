"""Loading a state for evaluation, compared with a restore; and `diff` of two states, compared with reading both once.

    python -m bench.states [--quick]

The time of `load` begins with a reference and an open catalog, and includes resolving. The time of a restore begins
with the plan. Each runs in a new process, and the network has every parameter of the file.

The compared states differ in each weight. The contender of `diff` reads both files from beginning to end, in one
thread, into one buffer. All files are in the page cache.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.inspect_file import memory
from bench.measure import CKPTSTORE, Budget, Found, Row, say, timed, turns
from bench.restore import NAMES, OFTEN, REPEATS, asked
from bench.task import run_alone
from ckptstore import Catalog, connect
from ckptstore.formats.safetensors import Tensor, write_safetensors
from tests.ckpt_bytes import value

TASK = "states"
MIB = 1 << 20
QUICK = 32
"""The size of a file in MiB, with `--quick`. Each parameter has 1 MiB."""
RESTORE, READ = "restore of a training", "reading both once"
LOAD, DIFF, MEMORY = 1.1, 1.5, 200.0
_BUFFER = 4 * MIB


def weights(count: int, step: int) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    """Parameters with the names of `bench.restore_job`. Their values change a little with each step."""
    for place in range(1, count + 1):
        chance = np.random.default_rng(place)
        start, moved = (chance.standard_normal(MIB // 4, np.float32) for _ in range(2))
        yield f"layer.{place}.weight", start + moved * np.float32(1e-3 * step)


def write(path: Path, count: int, step: int) -> None:
    """Write a file in the format that its name has."""
    if path.suffix == ".ckpt":
        with path.open("wb") as file:
            for name, values in weights(count, step):
                file.write(value(name, "Float32", values.shape, values.tobytes()))
    else:
        tensors = [_tensor(name, values.tobytes()) for name, values in weights(count, step)]
        write_safetensors(str(path), tensors, {"format": "ms"})


def _tensor(name: str, data: bytes) -> Tensor:
    return Tensor(name, "Float32", (len(data) // 4,), len(data), lambda: memoryview(data))


def loading(path: Path, count: int, who: str, what: str) -> float:
    """The seconds of one load in a new process. `what` is a digest or a reference."""
    return float(asked(who=who, seed=9, path=str(path), digest=what, cold=False, count=count, size=MIB)["seconds"])


def compared(catalog: Catalog, step: int, parameters: int) -> None:
    """Do the work of the command before it prints."""
    (only,) = catalog.diff("run@1", f"run@{step}").ranks
    assert len(only.changed) == parameters


def read_both(*paths: Path) -> None:
    """Read the bytes of both files into one buffer."""
    buffer = bytearray(_BUFFER)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def run(work: Path, *, quick: bool) -> Found:
    """Load both formats. Compare a `.ckpt` with a file of the other format, and with one of its own format."""
    size = QUICK if quick else OFTEN
    say(f"{TASK}: three files of {size:,} MiB")
    paths = [work / f"net-1_{step}.{form}" for step, form in ((1, "ckpt"), (2, "safetensors"), (3, "ckpt"))]
    for step, path in enumerate(paths, 1):
        write(path, size, step)
    return measured(paths, size, quick=quick)


def measured(paths: list[Path], size: int, *, quick: bool) -> Found:
    """Measure with three files that exist."""
    found = Found()
    catalog = connect()
    launch = catalog.join("run")
    digests = [str(launch.register(path, global_step=step).digest) for step, path in enumerate(paths, 1)]
    for step, path, digest in zip((1, 2), paths, digests, strict=False):
        ways = {CKPTSTORE: ("load", f"run@{step}"), RESTORE: (NAMES[CKPTSTORE], digest)}
        taken, _ = turns({who: partial(loading, path, size, *way) for who, way in ways.items()}, repeats=REPEATS)
        row = found.add(Row(TASK, f"load of a {path.suffix}, warm, MiB", size, taken))
        ratio = row.ratio(CKPTSTORE, RESTORE).median
        if not quick:
            found.check(Budget(f"load / {RESTORE}, {path.suffix}, 1 GB, warm", ratio, LOAD))
    for step in (2, 3):
        other = paths[step - 1]
        work_of = {CKPTSTORE: partial(compared, catalog, step, size), READ: partial(read_both, paths[0], other)}
        taken, _ = turns({who: partial(timed, way) for who, way in work_of.items()})
        row = found.add(Row(TASK, f"diff of a .ckpt and a {other.suffix}, warm, MiB each", size, taken))
        ratio = row.ratio(CKPTSTORE, READ).median
        if not quick:
            found.check(Budget(f"diff / {READ}, .ckpt and {other.suffix}, 1 GB each, warm", ratio, DIFF))
    used = memory(str(Path(sys.executable).with_name("ckptstore")), "diff", "run@1", "run@2")
    found.add(Row(TASK, "memory of a process that compares two files, MiB each", size, {CKPTSTORE: [used]}, unit="B"))
    if quick:
        say("  the budgets are those of 1 GB")
    else:
        found.check(Budget("memory of ckptstore diff, 1 GB each", used / 1e6, MEMORY, unit="MB"))
    return found


if __name__ == "__main__":
    run_alone(run)
