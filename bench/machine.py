"""Describes the machine and the versions of a measurement, without the machine's name or paths."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from importlib.metadata import version
from pathlib import Path

from bench.worker import PEERS

OWN = ("ckptstore", "mindspore", "SQLAlchemy", "safetensors")
OTHERS = ("orbax-checkpoint", "mlflow", "ray", "dlrover")
_ASK = "import sys; from importlib.metadata import version; print(*(version(name) for name in sys.argv[1:]))"


def describe(work: Path) -> str:
    """Cores, memory, the file system of a directory, the kernel and Python."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return (
        f"{os.cpu_count()} cores, {pages * size / 2**30:.0f} GiB of memory, {file_system(work)}, "
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    )


def file_system(path: Path) -> str:
    """The type of the file system that a path is on."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = {str(path), *map(str, path.parents)}
    return max((len(where), kind) for where, kind in mounts if where in above)[1]


def versions() -> dict[str, str]:
    """The versions of all packages that are measured."""
    own = {name: version(name) for name in OWN}
    asked = subprocess.run([PEERS, "-c", _ASK, *OTHERS], check=True, capture_output=True, text=True)
    return own | {"SQLite": sqlite3.sqlite_version} | dict(zip(OTHERS, asked.stdout.split(), strict=True))
