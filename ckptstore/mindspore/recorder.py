"""The thread that does what may take time: it waits for files, reads them and writes the catalog."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.errors import CkptstoreError
from ckptstore.ops.register import measured
from ckptstore.storage.files import names_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptstore.core.model import Checkpoint
    from ckptstore.ops.launch import RankLaunch

log = logging.getLogger("ckptstore")

_LOOK_AGAIN_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 5.0
_FILE_PATIENCE_SECONDS = 600.0
FLUSH_SECONDS = 10.0
_NOTHING_TO_WRITE = object()  # what a job returns that did not need the catalog


@dataclass(frozen=True)
class _Waiting:
    """A file being written, until when to wait for it (in seconds of the monotonic clock), and what was said of it."""

    file: Checkpoint
    until: float
    complained: list[OSError] = field(default_factory=list)


class Recorder:
    """Takes jobs from the training thread and does them in order, until it is closed.

    A job that the catalog refuses is tried again until it is done; the trouble is logged once, not once a step.
    `on_recorded` hears of each file that is in the catalog now.
    """

    def __init__(self, launch: RankLaunch) -> None:
        self._launch = launch
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._live: dict[str, Checkpoint] = {}
        self._waiting: list[_Waiting] = []
        self._idle = threading.Condition()
        self._open_jobs = 0
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._troubled = False
        self.on_recorded: Callable[[Checkpoint], None] = lambda _: None

    def submit(self, file: Checkpoint, *, asynchronous: bool) -> None:
        """Record a file that was just saved; one that another thread or process still writes, once it is there."""
        self.call(lambda: self._record(file, asynchronous=asynchronous))

    def keep_exit(self, file: Checkpoint, kept_path: str) -> None:
        """Record the file of a graceful exit, which is whole now, under the name that it gets to keep."""
        measured: list[Checkpoint] = []

        def job() -> object:
            whole = measured[0] if measured else self._measure(file)
            if whole is None:
                log.warning("%s is not there any more: not registered", file.path)
                return _NOTHING_TO_WRITE
            measured[:] = [whole]  # after a failure the file may have its new name already
            try:
                self._launch.keep_exit(whole, kept_path)
            except OSError as error:
                log.warning("%s keeps its name (%s): the next one overwrites it", file.path, error.strerror or error)
                self._launch.record([whole])
            return None

        self.call(job)

    def call(self, job: Callable[[], object]) -> None:
        """Do `job` on the thread, after those before it."""
        with self._idle:
            self._open_jobs += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="ckptstore", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        self._jobs.put(job)

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until every job is done, at most so long; whether they are."""
        with self._idle:
            return self._idle.wait_for(lambda: self._open_jobs == 0, seconds)

    def close(self) -> None:
        """Finish what can be finished within the deadline. Called once more at the interpreter's exit."""
        done = self.flush()
        self._hurry.set()
        atexit.unregister(self.close)
        if not done:
            log.error("%d records did not reach the catalog in %.0f s", self._open_jobs, FLUSH_SECONDS)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_LOOK_AGAIN_SECONDS if self._waiting else None)
            except queue.Empty:
                job = None
            if job is not None:
                self._until_done(job)
                self._finish_one()
            for waiting in tuple(self._waiting):
                self._until_done(partial(self._look_again, waiting))

    def _finish_one(self) -> None:
        with self._idle:
            self._open_jobs -= 1
            self._idle.notify_all()

    def _until_done(self, job: Callable[[], object]) -> None:
        pause = _LOOK_AGAIN_SECONDS
        while True:
            try:
                done = job()
            except CkptstoreError as error:
                if not self._troubled:
                    log.error("%s. Training goes on; it is tried again.", error)  # noqa: TRY400 — no traceback
                self._troubled = True
            except Exception:
                log.exception("a checkpoint could not be registered; training goes on")
                return
            else:
                if self._troubled and done is not _NOTHING_TO_WRITE:
                    log.warning("the catalog %s can be used again", self._launch.database.name)
                    self._troubled = False
                return
            if self._hurry.wait(pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _record(self, file: Checkpoint, *, asynchronous: bool) -> object:
        for waiting in [waiting for waiting in self._waiting if waiting.file.path == file.path]:
            self._give_up(waiting)  # the next save of that name has begun: the one before is over
        whole = self._measure(file)
        if whole is not None:
            self._keep(whole)
        elif asynchronous:
            # If this process dies while the save is under way, the next start finishes the record.
            self._launch.record([file])
            with self._idle:
                self._open_jobs += 1
            self._waiting.append(_Waiting(file, time.monotonic() + _FILE_PATIENCE_SECONDS))
        else:
            log.info("%s was deleted or written again before it could be recorded", file.path)
            return _NOTHING_TO_WRITE
        return None

    def _look_again(self, waiting: _Waiting) -> object:
        try:
            whole = self._measure(waiting.file)
        except OSError as error:  # as if it were not there yet: it may be readable a moment later
            whole = None
            if not waiting.complained:
                waiting.complained.append(error)
                log.warning("%s cannot be read yet (%s)", waiting.file.path, error.strerror or error)
        if whole is not None:
            self._keep(whole)
            self._waiting.remove(waiting)
            self._finish_one()
            return None
        if time.monotonic() > waiting.until or self._hurry.is_set():
            self._give_up(waiting)
        return _NOTHING_TO_WRITE

    def _give_up(self, waiting: _Waiting) -> None:
        log.warning("%s of step %d is not there: not registered", waiting.file.path, waiting.file.global_step)
        self._waiting.remove(waiting)
        self._finish_one()

    def _keep(self, whole: Checkpoint) -> None:
        self._launch.record([whole])
        self.on_recorded(whole)
        self._live[whole.path] = whole
        self._notice_vanished(Path(whole.path).parent)

    @staticmethod
    def _measure(file: Checkpoint) -> Checkpoint | None:
        """The measured record; None while the file is not there, or is that of another step."""
        try:
            return measured(file, prove_step=True)
        except FileNotFoundError:
            return None

    def _notice_vanished(self, directory: Path) -> None:
        """MindSpore's keep_checkpoint_max deletes files by itself (domain §9)."""
        names = names_in(str(directory))
        here = [file for file in self._live.values() if Path(file.path).parent == directory]
        gone = [file for file in here if Path(file.path).name not in names]
        if gone:
            self._launch.mark_missing(gone)
            for file in gone:
                del self._live[file.path]
