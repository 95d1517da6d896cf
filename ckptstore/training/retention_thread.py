"""Retention while training runs: on rank 0, on a thread of its own, after each state that is registered as a whole."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ckptstore.catalog import tallies
from ckptstore.core.hints import Command, as_options
from ckptstore.core.text import count, size
from ckptstore.disk.waiting import start_thread
from ckptstore.errors import CkptstoreError, RefusedError
from ckptstore.outside import threading
from ckptstore.retention.execute import execute
from ckptstore.retention.free_space import free_space
from ckptstore.retention.plan import plan_gc
from ckptstore.training.complaints import Complaints

if TYPE_CHECKING:
    from ckptstore.core.model import Checkpoint
    from ckptstore.retention.policy import Policy
    from ckptstore.training.rank_launch import RankLaunch

log = logging.getLogger("ckptstore")

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


class RetentionThread:
    """Runs gc by a policy after each state of which all ranks that save have registered their files.

    `file_registered` wakes it. Other ranks may register their files later, so it looks again until they are there.
    An error is logged once, and gc is tried again after the next save. Training never waits.
    """

    def __init__(self, launch: RankLaunch, policy: Policy) -> None:
        self._launch = launch
        self._policy = policy
        self._wanted = 0
        self._collected_at = 0
        self._woken = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_new = False
        self._complaints = Complaints()

    def begin(self) -> None:
        """Training begins, or a save has failed. Space is freed now: even the first save may not fit."""
        self._is_new = True
        self._wake()

    def file_registered(self, file: Checkpoint) -> None:
        """A file of this rank is registered: run gc once the others have theirs."""
        self._wanted = max(self._wanted, file.global_step)
        self._wake()

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._ended.clear()
            self._thread = start_thread(self._work, "ckptstore-gc")
        self._woken.set()

    def finish(self, seconds: float) -> None:
        """Run gc once more after training, for so many seconds at most. The next gc does the rest."""
        if self._thread is None:
            return
        self._ended.set()
        self._woken.set()
        self._thread.join(seconds)

    def _work(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            has_news = self._woken.wait(None if self._collected_at >= self._wanted else pause)
            self._woken.clear()
            last = self._ended.is_set()
            pause = _FIRST_PAUSE_SECONDS if has_news else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            try:
                if self._is_new:
                    self._is_new = False
                    self._free_space()
                self._collect_if_whole()
            except RefusedError as error:
                plan = Command("gc", self._launch.name, *as_options(self._policy.to_json()))
                self._complaints.warn(f"nothing is removed: {error}; {plan} shows the plan")
            except CkptstoreError as error:
                self._complaints.warn(f"{error}. Training goes on; gc is tried again after the next save.")
            except Exception:
                log.exception("gc failed; training goes on")
                self._collected_at = self._wanted
            if last:
                return

    def _collect_if_whole(self) -> None:
        launch = self._launch
        with launch.database.read() as connection:
            step = tallies.newest_of_all_ranks(connection, launch.facts)
        if step is None or step <= self._collected_at:
            return
        self._collected_at = step  # even if gc fails: the next try is after the next save
        plan = plan_gc(launch.database, launch.run, self._policy)
        done = execute(launch.database, plan)
        if done.files or done.purged_files:
            log.info(
                "run %s: after step %d gc moved %s (%d bytes) to the trash, and deleted %d of earlier ones",
                launch.name,
                step,
                count(done.files, "file", "files"),
                done.bytes,
                done.purged_files,
            )
        for trouble in (*done.troubles, *plan.unseen):
            self._complaints.warn(f"gc could not do all: {trouble.path}: {trouble.reason}")
        self._free_space()

    def _free_space(self) -> None:
        if self._launch.recorder.behind:
            return
        for freed in free_space(self._launch.database, self._launch.run, self._policy):
            disk = freed.disk
            what = f"the next save of run {self._launch.name} needs {size(disk.needed)} in {disk.directory}"
            if freed.trash or freed.states:
                gone = f"{size(freed.trash)} of the trash and {count(len(freed.states), 'state', 'states')}"
                log.info("%s: %s were deleted to make room: steps %s", what, gone, list(freed.states))
                self._complaints.warn(
                    f"{what}, and it would not fit: the trash is deleted before its grace is over, then the oldest "
                    f"states, down to the newest {self._policy.floor}; this is logged once"
                )
            if not freed.is_enough:
                self._complaints.warn(f"{what}, and nothing more may go: free some of that disk")
