"""Names the process that holds a lock or a lease, and tells whether it still lives.

A name has the host, the process id there, and when the process began; then a random part, and the machine and the PID
namespace in which that id counts.
"""

from __future__ import annotations

from ckptstore.outside import Path, os, socket, token_hex

BOOT = "/proc/sys/kernel/random/boot_id"
"""The id of a boot. It tells apart machines with one host name, and boots of a machine: process ids start over."""

_NAMESPACE = "/proc/self/ns/pid"


def this_process() -> str:
    """A new name of this process: a different one at each call, for each lock that it takes."""
    pid = os.getpid()
    try:
        began = _began(pid)
    except OSError:
        began = ""
    return f"{socket.gethostname()}|{pid}|{began}|{token_hex(4)}@{_machine()}"


def shown(owner: str) -> str:
    """The name for a message."""
    host, pid, *_ = owner.split("|")
    return f"process {pid} on {host}"


def is_dead(owner: str) -> bool:
    """Whether a process of this machine is gone. Of other machines and containers nothing is known: False."""
    return _lives(owner) is False


def is_here(owner: str) -> bool:
    """Whether a process lives on this machine."""
    return _lives(owner) is True


def is_this_process(owner: str) -> bool:
    """Whether a name is one of this process."""
    return owner.rpartition("|")[0] == this_process().rpartition("|")[0] and is_here(owner)


def _lives(owner: str) -> bool | None:
    """Whether the process lives; None if it is of another machine, or its name does not tell the machine."""
    host, pid, began, last = owner.split("|")
    machine = last.partition("@")[2]
    if host != socket.gethostname() or not machine or machine != _machine():
        return None
    return _is_there(int(pid), began)


def _machine() -> str:
    """The boot of this machine, and the PID namespace; empty if the system does not tell both.

    The number of the namespace alone is not enough: the first namespace has the same number on every Linux.
    """
    try:
        return f"{os.stat(_NAMESPACE).st_ino}.{Path(BOOT).read_text(encoding='utf-8').strip()}"
    except OSError:
        return ""


def _is_there(pid: int, began: str) -> bool:
    """Whether the process of this machine with this id lives that began then: a later one with its id does not count.

    If /proc hides the processes of other users, any process with this id counts.
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
    """When a process of this machine began; empty if it is a zombie. Raises `OSError`."""
    state, *others = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return "" if state in ("Z", "X") else others[18]
