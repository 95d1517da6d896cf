"""Loading a file into a network with digest check, compared with MindSpore's loading, `safetensors` and `cat`.

    python -m bench.restore [--quick]

Each load runs in a new process, as after a restart, where MindSpore's memory must be allocated and cleared first. The
network is in memory before the clock starts. The clock stops when one byte of each page of each parameter was read,
because MindSpore only maps a .safetensors, and reads nothing when it loads. Warm: the file is in the page cache. Cold:
it is not.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import CKPTSTORE, Budget, Found, Row, say, turns
from bench.task import run_alone
from bench.worker import ROOT, environment

TASK = "restore"
MIB = 1 << 20
SIZES, QUICK_SIZES = (1, 100, 1000, 4000), (1, 32)
"""The sizes of files in MiB."""
OFTEN, REPEATS = 1000, 3
"""The size that is measured `REPEATS` times, and also cold."""
MINDSPORE, LIBRARY, FLOOR = "MindSpore, no proof", "safetensors, no proof", "cat"
NAMES = {CKPTSTORE: "ckptstore", MINDSPORE: "mindspore", LIBRARY: "safetensors", FLOOR: "cat"}
FASTER, COLD, MEMORY = 3, 0.8, 0.15
_LACKS = "refuses: more than what is free, without what the page cache would give back"


def asked(**what: Any) -> dict[str, Any]:
    """The answer of a new process of `bench.restore_job`."""
    command = [sys.executable, "-m", "bench.restore_job", json.dumps(what)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


class Loading:
    """Loads a file, and notes each contender's peak memory beyond the network's, and the contenders that refused."""

    def __init__(self, path: str, digest: str, shape: Mapping[str, int], *, cold: bool) -> None:
        self.peak: dict[str, list[float]] = {}
        self.refused: set[str] = set()
        self._what = {"path": path, "digest": digest, "cold": cold, **shape}
        self._found: set[int] = set()

    def seconds(self, who: str) -> float:
        """Load the file once; the seconds."""
        answer = asked(who=NAMES[who], seed=2, **self._what)
        if "refused" in answer:
            say(f"  {who}: {answer['refused']}")
            self.refused.add(who)
            return math.nan
        self.peak.setdefault(who, []).append(float(answer["peak"]))
        if who != FLOOR:
            self._found.add(answer["found"])
            assert len(self._found) == 1, "not all loaded the same"
        return float(answer["seconds"])


def _measure(found: Found, path: str, digest: str, size: int, *, cold: bool) -> tuple[Row, Row]:
    form = path.rpartition(".")[2]
    loading = Loading(path, digest, _shape(size), cold=cold)
    contenders = [CKPTSTORE, MINDSPORE, *([LIBRARY] if form == "safetensors" else []), FLOOR]
    taken, _ = turns(
        {who: partial(loading.seconds, who) for who in contenders},
        repeats=REPEATS if size == OFTEN else 1,
        warm_up=0,
    )
    state = "cold" if cold else "warm"
    taken = {who: seconds for who, seconds in taken.items() if who not in loading.refused}
    notes = dict.fromkeys(loading.refused, _LACKS)
    row = found.add(Row(TASK, f"restore of a .{form}, {state}, MiB", size, taken, notes))
    memory = Row(TASK, f"memory beyond the network's, .{form}, {state}, MiB", size, loading.peak, unit="B")
    return row, found.add(memory)


def _shape(size: int) -> dict[str, int]:
    count = min(max(size, 16), 1000)
    return {"count": count, "size": size * MIB // count}


def run(work: Path, *, quick: bool) -> Found:
    """Measure both formats, warm; files of 1 GB also cold."""
    found = Found()
    for size in QUICK_SIZES if quick else SIZES:
        paths = [str(work / f"net.{form}") for form in ("ckpt", "safetensors")]
        say(f"{TASK}: files of {size:,} MiB")
        digests = asked(make=paths, seed=1, **_shape(size))
        for path in paths:
            row, memory = _measure(found, path, digests[path], size, cold=False)
            form = path.rpartition(".")[2]
            if size == OFTEN:
                bytes_of = size * MIB
                peak = memory.spread(CKPTSTORE).median / bytes_of
                found.check(Budget(f"memory beyond the network's / the file's, .{form}, 1 GB", peak, MEMORY))
                if form == "ckpt":
                    faster = row.ratio(MINDSPORE, CKPTSTORE).median
                    name = "MindSpore's load without proof / restore with proof, .ckpt, 1 GB, warm"
                    found.check(Budget(name, faster, FASTER, at_least=True))
                row, _ = _measure(found, path, digests[path], size, cold=True)
                speed = row.ratio(FLOOR, CKPTSTORE).median
                found.check(Budget(f"speed of a restore / cat, .{form}, 1 GB, cold", speed, COLD, at_least=True))
            Path(path).unlink()
    if quick:
        say("  the budgets are those of 1 GB")
    return found


if __name__ == "__main__":
    run_alone(run)
