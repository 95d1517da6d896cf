"""How much memory this process may still take, on Linux."""

from __future__ import annotations

from contextlib import suppress

from ckptstore.outside import Path

_OWN, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_memory() -> int | None:
    """Bytes that are free on the machine, or in this process's control group if that has less; None if not known.

    Page cache counts as free: `MemAvailable` of proc(5), and the memory controller of Linux's control groups, version
    2 or 1.
    """
    found = []
    with suppress(OSError, ValueError, KeyError):
        found.append(int(_fields(Path("/proc/meminfo"))["MemAvailable:"]) << 10)
    with suppress(OSError):
        own = [line[3:] for line in _OWN.read_text(encoding="utf-8").splitlines() if line.startswith("0::")]
        for folder, names in (*((_GROUPS / each.lstrip("/"), _V2) for each in own), (_GROUPS / "memory", _V1)):
            with suppress(OSError, ValueError, KeyError):
                found.append(_free_in(folder, *names))
    return max(0, min(found)) if found else None


def _free_in(folder: Path, most: str, used: str, cache: str) -> int:
    """Raises `ValueError` if the group has no bound: "max" is no number. A container sees its own group here."""
    cached = int(_fields(folder / "memory.stat")[cache])
    return int((folder / most).read_text()) - int((folder / used).read_text()) + cached


def _fields(path: Path) -> dict[str, str]:
    return dict(line.split()[:2] for line in path.read_text(encoding="utf-8").splitlines())
