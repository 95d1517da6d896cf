"""Retention while training runs: on one rank, on a thread of its own, after each state that every rank registered."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ckptstore.errors import CkptstoreError, RefusedError
from ckptstore.storage.waiting import started

if TYPE_CHECKING:
    from ckptstore.core.model import Checkpoint
    from ckptstore.core.policy import Policy
    from ckptstore.mindspore.launch import TrainingLaunch

log = logging.getLogger("ckptstore")

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


class Keeper:
    """Runs gc by a policy after each state that is registered whole.

    It hears of each file that this rank registered; the other ranks' come when they come, so it looks again until
    they are there. What goes wrong is logged, once, and tried again after the next save: training never waits.
    """

    def __init__(self, launch: TrainingLaunch, policy: Policy) -> None:
        self._launch = launch
        self._policy = policy
        self._wanted = 0
        self._collected_at = 0
        self._news = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._complained: set[str] = set()

    def heard_of(self, file: Checkpoint) -> None:
        """A file of this rank is registered."""
        self._wanted = max(self._wanted, file.global_step)
        if self._thread is None or not self._thread.is_alive():
            self._ended.clear()
            self._thread = started(self._work, "ckptstore-gc")
        self._news.set()

    def finish(self, seconds: float) -> None:
        """Training has ended: look once more, for so long at most. What is not done by then the next gc does."""
        if self._thread is None:
            return
        self._ended.set()
        self._news.set()
        self._thread.join(seconds)

    def _work(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            is_news = self._news.wait(None if self._collected_at >= self._wanted else pause)
            self._news.clear()
            last = self._ended.is_set()
            pause = _FIRST_PAUSE_SECONDS if is_news else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            try:
                self._collect_if_whole()
            except RefusedError as error:
                self._complain(f"nothing is removed: {error}")
            except CkptstoreError as error:
                self._complain(f"{error}. Training goes on; gc is tried again after the next save.")
            except Exception:
                log.exception("gc failed; training goes on")
                self._collected_at = self._wanted
            if last:
                return

    def _collect_if_whole(self) -> None:
        step = self._launch.newest_registered_by_all()
        if step is None or step <= self._collected_at:
            return
        self._collected_at = step  # whatever comes of it: the next try is after the next save
        done = self._launch.collect(self._policy)
        if done.files or done.purged_files:
            log.info(
                "run %s: after step %d gc moved %d files (%d bytes) to the trash, and deleted %d of earlier ones",
                self._launch.run,
                step,
                done.files,
                done.bytes,
                done.purged_files,
            )
        for trouble in done.troubles:
            self._complain(f"gc is kept from its work by {trouble.path}: {trouble.reason}")

    def _complain(self, message: str) -> None:
        if message not in self._complained:
            self._complained.add(message)
            log.warning("%s", message)
