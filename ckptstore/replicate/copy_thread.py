"""Copies the files that a rank registers while it trains. It has a thread of its own: training never waits for it."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptstore.core.hints import Command
from ckptstore.core.model import Content, FileState
from ckptstore.core.naming import SEVERAL
from ckptstore.core.text import count
from ckptstore.disk.waiting import start_thread
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
_LONGEST_PAUSE_SECONDS = 60.0
_END_SECONDS = 5.0


class CopyThread:
    """Copies each registered file to the farther tiers, on a thread, at a limited rate.

    A tier that fails rests and is tried again. Afterwards `ckptstore replicate` copies the files that are left. `rate`
    and `recorder` are those of `Replicator`.
    """

    def __init__(
        self, database: Database, tiers: Sequence[Tier], rate: float | None = None, recorder: Recorder | None = None
    ) -> None:
        self._tiers = tuple(tiers)
        self._replicator = Replicator(database, rate, recorder=recorder)
        self._new: deque[Checkpoint] = deque()
        self._waiting: list[_Waiting] = []
        self._said: set[str] = set()
        self._woken = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def file_registered(self, file: Checkpoint) -> None:
        """Queue a registered file of this rank, unless files of its kind are never copied (`copies.lacking`).

        It is copied after `SETTLED`: its companion is beside it then.
        """
        if file.state is not FileState.COMPLETE or file.content is Content.PART or file.format in SEVERAL:
            return
        self._new.append(file)
        if self._thread is None or not self._thread.is_alive():
            self._ending.clear()  # another training of the same launch
            self._replicator.stop.clear()
            self._thread = start_thread(self._work, "ckptstore-copy")
        self._woken.set()

    def finish(self, seconds: float) -> int:
        """At the end of training, copy the waiting files for at most so many seconds; return how many are left.

        Do not wait for tiers that failed before.
        """
        self._ending.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(seconds)
            self._replicator.stop.set()
            self._thread.join(_END_SECONDS)
        left = len(self._waiting) + len(self._new)
        if left:
            log.warning("%s not copied: %s does it", count(left, "file is", "files are"), Command("replicate"))
        return left

    def _work(self) -> None:
        while not self._replicator.stop.is_set():
            self._woken.clear()
            while self._new:
                due = time.monotonic() + SETTLED.total_seconds()
                self._waiting.append(_Waiting(due, self._new.popleft(), self._tiers))
            if self._ending.is_set() and all(each.is_away for each in self._waiting):
                return
            if self._waiting:
                self._copy_due()
            else:
                self._woken.wait()

    def _copy_due(self) -> None:
        """Copy the file that is due first. At the end of training, do not wait for its companion."""
        first = min(self._waiting)
        wait = first.due - time.monotonic()
        if wait > 0 and (first.pause or not self._ending.is_set()):
            self._woken.wait(min(wait, _LOOK_SECONDS))
            return
        is_away = False
        try:
            left = self._replicator.copy(first.file, first.tiers)
            is_away = self._replicator.cannot_copy(first.file, left)
        except StoppedError:
            return
        except CkptstoreError as error:
            if error.message not in self._said:
                self._said.add(error.message)
                log.warning("%s is not copied now: %s. Training goes on; this is logged once.", first.file.path, error)
            left, is_away = list(first.tiers), True
        except Exception:
            log.exception("%s is not copied; training goes on", first.file.path)
            left = []
        self._waiting.remove(first)
        if left:
            pause = min(2 * first.pause or _LOOK_SECONDS, _LONGEST_PAUSE_SECONDS)
            due = time.monotonic() + max(self._replicator.rests(), pause)
            self._waiting.append(_Waiting(due, first.file, tuple(left), pause, is_away))


@dataclass(order=True)
class _Waiting:
    """A file to copy to tiers, and the time of the next attempt (`due`, by `time.monotonic`).

    `pause` is the wait before this attempt, in seconds (0: it is the first). `is_away`: a tier or the catalog could not
    be used. Otherwise another process copies the file, and will soon be done.
    """

    due: float
    file: Checkpoint = field(compare=False)
    tiers: tuple[Tier, ...] = field(compare=False)
    pause: float = field(default=0.0, compare=False)
    is_away: bool = field(default=False, compare=False)
