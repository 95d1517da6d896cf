"""Which process holds something that the catalog tells of: its host, its id there, when it began.

The last part of such a name makes it another one each time, and tells on which machine that id is, and in which PID
namespace there.
"""

from __future__ import annotations

from ckptstore.outside import Path, os, socket, token_hex

BOOT = "/proc/sys/kernel/random/boot_id"
"""What tells machines apart that have one host name, and each start of one: its process ids start over."""

_NAMESPACE = "/proc/self/ns/pid"


def this_process() -> str:
    """The process that asks, as the holder of one thing more: each time another name."""
    pid = os.getpid()
    try:
        began = _began(pid)
    except OSError:
        began = ""
    return f"{socket.gethostname()}|{pid}|{began}|{token_hex(4)}@{_machine()}"


def shown(owner: str) -> str:
    """A holder as people read it."""
    host, pid, *_ = owner.split("|")
    return f"process {pid} on {host}"


def is_dead(owner: str) -> bool:
    """Whether a process of this machine is gone; of another's, or another container's on it, nothing is known."""
    return _lives(owner) is False


def is_here(owner: str) -> bool:
    """Whether a process lives on this machine."""
    return _lives(owner) is True


def is_this_process(owner: str) -> bool:
    """Whether the process that asks is the holder."""
    return owner.rpartition("|")[0] == this_process().rpartition("|")[0] and is_here(owner)


def _lives(owner: str) -> bool | None:
    """None where it is not known: it is of another machine, or its name does not tell the machine."""
    host, pid, began, last = owner.split("|")
    machine = last.partition("@")[2]
    if host != socket.gethostname() or not machine or machine != _machine():
        return None
    return _is_there(int(pid), began)


def _machine() -> str:
    """Which start of which machine this is, and the PID namespace; empty where the system does not tell both.

    The number of the namespace alone does not do: that of the first one is the same on every Linux.
    """
    try:
        return f"{os.stat(_NAMESPACE).st_ino}.{Path(BOOT).read_text(encoding='utf-8').strip()}"
    except OSError:
        return ""


def _is_there(pid: int, began: str) -> bool:
    """Whether a process of this machine lives that began then: a later one with its number is not taken for it.

    Where /proc hides the processes of other users, any process with that number is.
    """
    try:
        return _began(pid) == began
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _began(pid: int) -> str:
    """When a process of this machine began; empty if it has ended and is not buried. Raises `OSError`."""
    state, *others = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return "" if state in ("Z", "X") else others[18]
