"""The only access to files, clocks, random numbers, threads and processes. No other module imports these.

The simulated world of the tests (tests/world) puts simulated ones in their place.
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
"""Random numbers from the operating system: a draw does not change the sequence of the process's own generator.

Training draws from that one, and must get the same numbers as without ckptstore.
"""


def utc_now() -> datetime:
    """The time by the clock of this machine."""
    return datetime.now(timezone.utc)


def token_hex(count: int) -> str:
    """`count` random bytes, in hexadecimal."""
    return CHANCE.randbytes(count).hex()
