"""`ckptstore inspect` of a 1 GB file against `mindspore.load_checkpoint`: at least 100 times faster, below 100 MB.

python bench/inspect_file.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
from ratios import ratio

from ckptstore.ops.inspect import inspect

PARAMETERS = 1000
FLOATS = 262_144  # 1 MiB each
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
FASTER = 100
MEMORY = 100e6


def main() -> int:
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "large.ckpt"
        values = [
            {"name": f"layer.{n}.weight", "data": ms.Tensor(np.zeros(FLOATS, np.float32))} for n in range(PARAMETERS)
        ]
        ms.save_checkpoint(values, str(path))
        print(f"{path.stat().st_size / 1e9:.2f} GB, {PARAMETERS} parameters")
        found = ratio(
            "inspect / load_checkpoint", lambda: inspect(path), lambda: ms.load_checkpoint(str(path)), repeats=3
        )
        print(found)
        command = [str(Path(sys.executable).with_name("ckptstore")), "inspect", "--json", str(path)]
        # By a small process of its own: a child's memory counts from the fork, and this one is large.
        used = int(subprocess.run([sys.executable, "-c", MEASURE, *command], check=True, capture_output=True).stdout)
        print(f"memory of the command: {used / 1e6:.0f} MB")
    kept = found.median * FASTER <= 1 and used < MEMORY
    print("within the budget" if kept else "OVER THE BUDGET")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
