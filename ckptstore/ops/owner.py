"""Which process holds something that the catalog tells of: its host, its id there, when it began.

The last part of such a name makes it another one each time, and tells in which PID namespace that id is.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path


def this_process() -> str:
    """The process that asks, as the holder of one thing more: each time another name."""
    return f"{socket.gethostname()}|{os.getpid()}|{_began(os.getpid())}|{secrets.token_hex(4)}@{_namespace()}"


def shown(owner: str) -> str:
    """A holder as people read it."""
    host, pid, *_ = owner.split("|")
    return f"process {pid} on {host}"


def is_dead(owner: str) -> bool:
    """Whether a process of this host is gone; of another host's, or another container's on it, nothing is known."""
    host, pid, began, last = owner.split("|")
    _, told, namespace = last.partition("@")
    if host != socket.gethostname() or (told and namespace != _namespace()):
        return False
    return _began(int(pid)) != began


def _namespace() -> str:
    """The PID namespace of this process; empty where the system does not tell."""
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When a process of this host began, so that a later one with its number is not taken for it; empty if it is gone.

    Where there is no /proc, only whether it is there.
    """
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return "" if state in ("Z", "X") else others[18]
    except (OSError, IndexError):
        if Path("/proc/self/stat").exists():
            return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "there"
    return "there"
