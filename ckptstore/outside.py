"""The one way to the outside: files, clocks, chance, threads, processes. No other module imports these.

The simulated world of the tests puts its own in their place (tests/world).
"""

from __future__ import annotations

import atexit
import fcntl
import grp
import mmap
import os
import pwd
import queue
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from builtins import open as open_file
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

__all__ = [
    "CHANCE",
    "Future",
    "Path",
    "ThreadPoolExecutor",
    "atexit",
    "fcntl",
    "grp",
    "mmap",
    "open_file",
    "os",
    "pwd",
    "queue",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "token_hex",
    "utc_now",
]

CHANCE = random.SystemRandom()
"""A generator of its own: training draws from the process's, and must get the numbers of an undisturbed run."""


def utc_now() -> datetime:
    """The time by the clock of this machine."""
    return datetime.now(timezone.utc)


def token_hex(count: int) -> str:
    """So many random bytes, in hexadecimal."""
    return CHANCE.randbytes(count).hex()
