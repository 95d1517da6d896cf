"""How much memory this process may still take, on Linux."""

from __future__ import annotations

from contextlib import suppress

from ckptstore.outside import Path

_GROUPS = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes that are free on the machine, or in this process's control group if that has less; None if not known.

    Page cache counts as free: `MemAvailable` of proc(5), `memory.max`, `memory.current` and `inactive_file` of
    Linux's control groups, version 2.
    """
    found = []
    with suppress(OSError, ValueError, KeyError):
        found.append(int(_fields(Path("/proc/meminfo"))["MemAvailable:"]) << 10)
    with suppress(OSError, ValueError, KeyError):
        group = Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("0::")[2]
        folder = _GROUPS / group.lstrip("/")
        used = int((folder / "memory.current").read_text()) - int(_fields(folder / "memory.stat")["inactive_file"])
        found.append(int((folder / "memory.max").read_text()) - used)  # "max" is no number: no bound
    return max(0, min(found)) if found else None


def _fields(path: Path) -> dict[str, str]:
    return dict(line.split()[:2] for line in path.read_text(encoding="utf-8").splitlines())
