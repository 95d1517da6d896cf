"""Copies what a rank registers while it trains, on a thread of its own: training never waits for it."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from ckptstore.core.hints import Command
from ckptstore.core.text import count
from ckptstore.disk.waiting import started
from ckptstore.errors import CkptstoreError
from ckptstore.outside import threading, time
from ckptstore.replicate.replicator import SETTLED, Replicator, StoppedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.copies import Tier
    from ckptstore.core.model import Checkpoint
    from ckptstore.journal.recorder import Recorder

log = logging.getLogger("ckptstore")

_LOOK_SECONDS = 1.0
_END_SECONDS = 5.0


class CopyThread:
    """Copies each file that is handed over to the tiers that are farther than it, at so many bytes a second at most.

    A tier that fails rests and is tried again. What is left at the end is copied by `ckptstore replicate`. `rate` and
    `recorder` are those of `Replicator`.
    """

    def __init__(
        self, database: Database, tiers: Sequence[Tier], rate: float | None = None, recorder: Recorder | None = None
    ) -> None:
        self._tiers = tuple(tiers)
        self._replicator = Replicator(database, rate, recorder=recorder)
        self._waiting: deque[tuple[float, Checkpoint, tuple[Tier, ...]]] = deque()
        self._woken = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def file_registered(self, file: Checkpoint) -> None:
        """A file of this rank is registered: it is copied once what belongs to it is beside it."""
        self._waiting.append((time.monotonic() + SETTLED.total_seconds(), file, self._tiers))
        if self._thread is None or not self._thread.is_alive():
            self._thread = started(self._work, "ckptstore-copy")
        self._woken.set()

    def finish(self, seconds: float) -> int:
        """Training has ended: copy what waits, for so many seconds at most; how many files are left."""
        self._ending.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(seconds)
            self._replicator.stop.set()
            self._thread.join(_END_SECONDS)
        left = len(self._waiting)
        if left:
            log.warning("%s not copied: %s does it", count(left, "file is", "files are"), Command("replicate"))
        return left

    def _work(self) -> None:
        while self._waiting or not self._ending.is_set():
            due, file, tiers = self._waiting[0] if self._waiting else (None, None, ())
            if file is None or (due is not None and due > time.monotonic() and not self._ending.is_set()):
                self._woken.wait(_LOOK_SECONDS if file else None)
                self._woken.clear()
                continue
            try:
                left = self._replicator.copy(file, tiers)
            except StoppedError:
                return
            except CkptstoreError as error:
                log.warning("%s is not copied now: %s", file.path, error)
                left = list(tiers)
            except Exception:
                log.exception("%s is not copied; training goes on", file.path)
                left = []
            self._waiting.popleft()
            if left:
                due = time.monotonic() + max(self._replicator.rests(), _LOOK_SECONDS)
                self._waiting.append((due, file, tuple(left)))
                if self._ending.is_set() and self._replicator.stop.wait(_LOOK_SECONDS):
                    return
