"""The thread that records what training saves: it waits for files, reads them, and writes journals and catalog."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ckptstore.catalog.backoff import Backoff
from ckptstore.core.model import FileState
from ckptstore.core.text import count
from ckptstore.disk.files import make_durable
from ckptstore.disk.waiting import start_thread
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, reason_of
from ckptstore.outside import Path, atexit, os, queue, signal, threading, time
from ckptstore.resume import exits
from ckptstore.resume.register import measured
from ckptstore.training.companions import Companions
from ckptstore.training.rank_launch import LONGEST_PAUSE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptstore.core.model import Checkpoint
    from ckptstore.training.rank_launch import RankLaunch

log = logging.getLogger("ckptstore")

_TRY_AGAIN_SECONDS = 0.02
_MANY_JOBS = 4
_STEPS_MEASURED = 8  # whose metrics are kept: the save of a step may end after the evaluation of a later one
_FILE_PATIENCE_SECONDS = 600.0
FLUSH_SECONDS = 10.0


@dataclass
class _Waiting:
    """A file being written, until when to wait for it (seconds of the monotonic clock), and whether reading failed."""

    file: Checkpoint
    until: float
    has_failed: bool = False


class RecorderThread:
    """Takes jobs from the training thread and does them in order, until it is closed.

    With `durable` every file is flushed to the disk before it is registered. `on_recorded` is called with each
    registered file, on this thread. `state_names` are the parameters that a whole file has.

    When a job is done, its records are in a journal. If several jobs wait, the catalog gets all their records in one
    transaction after them. A catalog that cannot be used is tried at longer and longer intervals. When it is back it
    gets all records of the journals. The trouble is logged once, not once a step.
    """

    def __init__(
        self,
        launch: RankLaunch,
        *,
        durable: bool = False,
        on_recorded: Callable[[Checkpoint], None] = lambda _: None,
    ) -> None:
        self._durable = durable
        self._launch = launch
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._waiting: list[_Waiting] = []
        self._measured: dict[int, dict[str, float]] = {}
        self._lock = threading.RLock()  # `with` of the condition runs Python: a tenth of the time that training waits
        self._idle = threading.Condition(self._lock)
        self._open_jobs = 0
        self._hurry = threading.Event()
        self._may_rest = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._seconds_left = FLUSH_SECONDS
        self._backoff = Backoff(LONGEST_PAUSE_SECONDS)
        self._next_try = 0.0
        self._failures = 0
        self._said_left = ""
        self._companions = Companions(launch.live_files.at, durable=durable)
        self._said_companions = False
        self._on_recorded = on_recorded
        self.state_names: frozenset[str] = frozenset()

    def submit(self, file: Checkpoint, *, asynchronous: bool) -> None:
        """Record a file that was just saved; if it is `asynchronous`, once another thread or process has written it.

        If it has a digest, that of the written bytes, the file is not read again.
        """
        self.call(lambda: self._record(file, asynchronous=asynchronous))

    def keep_exit(self, file: Checkpoint, kept_path: str) -> None:
        """Rename the complete file of a graceful exit to `kept_path`, and record it."""
        measured: list[Checkpoint] = []

        def job() -> None:
            whole = measured[0] if measured else self._measure(self._with_metrics(file))
            if whole is None:
                log.warning("%s is not there any more: not registered", file.path)
                return
            measured[:] = [whole]  # after a failure the file may have its new name already
            try:
                kept = exits.keep(self._launch.recorder, whole, kept_path)
            except OSError as error:
                log.warning(
                    "%s could not be renamed (%s): the next graceful exit overwrites it",
                    file.path,
                    reason_of(error),
                )
                self._launch.record_files([whole])
            else:
                self._launch.live_files.forget(whole.path)
                self._keep(kept)

        self.call(job)

    def quarantine_after(self, step: int, reason: str) -> None:
        """Quarantine the states after a step that were saved so far, including those that are still being written."""

        def job() -> None:
            for waiting in self._waiting:
                if waiting.file.global_step > step:
                    waiting.file = replace(waiting.file, quarantine=waiting.file.quarantine or reason)
            self._launch.live_files.quarantine_after(step, reason)

        self.call(job)

    def measure(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add metrics to the files of a step, including those that are recorded later."""

        def job() -> None:
            self._measured[step] = {**self._measured.pop(step, {}), **metrics}
            while len(self._measured) > _STEPS_MEASURED:
                del self._measured[next(iter(self._measured))]
            for waiting in self._waiting:
                waiting.file = self._with_metrics(waiting.file)
            start = self._launch.facts.start_step
            if not start or step > start:  # a fresh launch started from no state
                self._launch.live_files.measure(step, metrics)
            else:
                try:
                    self._launch.measure(step, metrics)
                except CkptstoreError as error:  # not repeated: the saves after it would wait for the catalog
                    log.error("metrics of step %d are not recorded: %s", step, error)  # noqa: TRY400

        self.call(job)

    def keep_beside(self, path: str, step: int, content: Callable[[], dict[str, Any]]) -> None:
        """Write what `content` returns to the companion of the file of a step, once that is recorded."""
        self.call(lambda: self._beside(lambda: self._companions.keep(path, step, content)))

    def call(self, job: Callable[[], object]) -> None:
        """Do `job` on the thread, after the earlier ones, however many wait. Never waits itself."""
        if os.getpid() != self._process:  # a child of a fork: the thread is its parent's
            if self._process:
                log.error("this process is a fork of the one that joined: only the next start registers its saves")
            self._process = 0
            return
        with self._lock:
            self._open_jobs += 1
            self._jobs.put(job)
            self._seconds_left = FLUSH_SECONDS
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        self._thread = start_thread(self._work, "ckptstore")
        if self._thread is not None:  # else the next job tries again
            atexit.register(self.close)

    def begin(self) -> None:
        """Training begins: stay ready for its saves."""
        if self._may_rest:
            self._may_rest = False
            self.call(lambda: self._launch.recorder.tell(self._launch.key))  # opens journals: `note` must not wait

    def rest(self) -> None:
        """Training has ended: end the thread, and close journals and catalog, once they have all records.

        The next job starts them again. Else many trainings in one process would run out of open files.
        """
        if os.getpid() != self._process:
            return
        self._may_rest = True
        if (thread := self._thread) is None:
            return
        self._jobs.put(None)  # it may be asleep
        if self._has_all():
            thread.join(self._seconds_left)

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until everything is recorded, in the catalog too; return whether it is.

        At most `seconds` (None: the rest of FLUSH_SECONDS, over all calls since the last job; and no longer than
        it takes to see that the catalog still cannot be used).
        """
        if os.getpid() != self._process:
            return True
        if self._thread is None:
            return self._open_jobs == 0
        begin = time.monotonic()
        patience = self._seconds_left if seconds is None else seconds
        self._next_try = 0.0
        self._jobs.put(None)  # it may be asleep
        failures = self._failures

        def is_over() -> bool:
            is_hopeless = seconds is None and self._failures > failures  # the journals have it: no need to wait
            return self._open_jobs == 0 and (is_hopeless or not self._launch.recorder.is_late)

        with self._idle:
            self._idle.wait_for(is_over, patience)
            done = self._has_all()
        if seconds is None:
            self._seconds_left = max(0.0, self._seconds_left - (time.monotonic() - begin))
        return done

    def close(self) -> None:
        """Finish what can be finished within the deadline. Called once more at the interpreter's exit."""
        if os.getpid() != self._process:
            return
        self.finish()
        self._hurry.set()
        self._jobs.put(None)
        atexit.unregister(self.close)

    def finish(self) -> None:
        """Flush, and log once which records are not in the catalog, and where they are."""
        if self.flush():
            return
        left = ""
        if self._open_jobs:
            left = f"{count(self._open_jobs, 'record was', 'records were')} not made yet; the next start looks on disk"
        elif self._launch.recorder.is_late:
            left = "the catalog lacks the last records: they are in the journals; the next start takes them up"
        if left not in ("", self._said_left):
            log.warning("%s", left)
        self._said_left = left

    def _work(self) -> None:
        while not self._hurry.is_set() and not self._rests():
            try:
                job = self._jobs.get(timeout=self._patience())
            except queue.Empty:
                job = None
            if job is not None:
                if self._jobs.qsize() >= _MANY_JOBS:
                    self._launch.recorder.postponed = True
                self._until_done(job)
                self._finish_one()
            for waiting in tuple(self._waiting):
                self._until_done(partial(self._try_again, waiting), partial(self._drop, waiting))
            is_time = self._jobs.empty() and time.monotonic() >= self._next_try  # journals first
            if self._launch.recorder.is_late and is_time:
                self._catch_up()

    def _has_all(self) -> bool:
        return self._open_jobs == 0 and not self._launch.recorder.is_late

    def _rests(self) -> bool:
        """Close everything if training is over and nothing is left to do. Returns whether the thread is to end."""
        if not (self._may_rest and self._has_all()):
            return False
        try:
            self._launch.let_go()
        except Exception:
            log.exception("journals or catalog could not be closed; their records are safe")
        with self._idle:
            is_over = self._may_rest and self._has_all()  # a job may have come since
            if is_over:
                self._thread = None
                atexit.unregister(self.close)
        return is_over

    def _patience(self) -> float | None:
        """How long to wait for the next job, in seconds; None if there is nothing else to do."""
        if self._waiting:
            return _TRY_AGAIN_SECONDS
        return max(0.0, self._next_try - time.monotonic()) if self._launch.recorder.is_late else None

    def _finish_one(self) -> None:
        with self._idle:
            self._open_jobs -= 1
            self._idle.notify_all()

    def _catch_up(self) -> None:
        """Bring the catalog up to date with the journals. After a failure wait, each rank for a different time."""
        could_not_be_used = self._launch.recorder.behind
        try:
            self._launch.recorder.catch_up()
        except CkptstoreError:
            self._failures += 1
            self._next_try = time.monotonic() + self._backoff.pause()
        except Exception:
            self._next_try = time.monotonic() + LONGEST_PAUSE_SECONDS
            log.exception("the journals could not be taken into the catalog; training goes on")
        else:
            if could_not_be_used:
                log.warning("the catalog %s can be used again, and has all records", self._launch.database.name)
            self._backoff.reset()
            self._next_try = 0.0
        with self._idle:
            self._idle.notify_all()

    def _until_done(self, job: Callable[[], object], give_up: Callable[[], object] = lambda: None) -> None:
        """Do a job. It is repeated until journal or catalog take its records: so no job may need the catalog.

        `give_up` is called after any other error: to repeat the job would keep all others waiting.
        """
        backoff = Backoff(LONGEST_PAUSE_SECONDS)
        while True:
            try:
                job()
            except CatalogUnavailableError as error:
                self._launch.recorder.complain(f"{error}. Training goes on; ckptstore tries again.")
            except (OSError, CkptstoreError) as error:
                log.error("a checkpoint could not be registered (%s); training goes on", error)  # noqa: TRY400
                give_up()
                return
            except Exception:
                log.exception("a checkpoint could not be registered; training goes on")
                give_up()
                return
            else:
                return
            if self._hurry.wait(backoff.pause()):
                return

    def _record(self, file: Checkpoint, *, asynchronous: bool) -> None:
        file = self._with_metrics(file)
        for waiting in [waiting for waiting in self._waiting if waiting.file.path == file.path]:
            self._give_up(waiting)  # the next save of that name has begun: the one before is over
        whole = self._measure(file)
        if whole is not None:
            self._keep(whole)
        elif asynchronous:
            # If this process dies while the save is under way, the next start finishes the record.
            self._launch.record_files([file])
            with self._idle:
                self._open_jobs += 1
            self._waiting.append(_Waiting(file, time.monotonic() + _FILE_PATIENCE_SECONDS))
        else:
            log.info("%s was deleted or written again before it could be recorded", file.path)

    def _try_again(self, waiting: _Waiting) -> None:
        try:
            whole = self._measure(waiting.file)
        except OSError as error:  # as if it were not there yet: it may be readable a moment later
            whole = None
            if not waiting.has_failed:
                waiting.has_failed = True
                log.warning("%s cannot be read yet (%s)", waiting.file.path, reason_of(error))
        if whole is not None:
            self._keep(whole)
            self._drop(waiting)
        elif time.monotonic() > waiting.until or self._hurry.is_set():
            self._give_up(waiting)

    def _give_up(self, waiting: _Waiting) -> None:
        log.warning("%s of step %d is not there: not registered", waiting.file.path, waiting.file.global_step)
        self._drop(waiting)

    def _drop(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        self._finish_one()

    def _keep(self, whole: Checkpoint) -> None:
        self._launch.record_files([whole])
        self._launch.signs.pass_on()
        self._beside(lambda: self._companions.write(whole))
        self._on_recorded(whole)
        self._launch.live_files.notice_vanished(Path(whole.path).parent)

    def _beside(self, write: Callable[[], None]) -> None:
        """Write a companion. An error is only logged: the checkpoint is recorded anyway."""
        try:
            write()
        except Exception as error:  # noqa: BLE001 — a callback of the user's may keep anything
            if not self._said_companions:
                log.warning("what callbacks keep cannot be written (%s); training goes on", error)
            self._said_companions = True

    def _with_metrics(self, file: Checkpoint) -> Checkpoint:
        added = self._measured.get(file.global_step)
        return replace(file, metrics={**file.metrics, **added}) if added else file

    def _measure(self, file: Checkpoint) -> Checkpoint | None:
        """The measured record; None while the file is not there, is that of another step, or is still written.

        A `.ckpt` that ends between two parameters looks whole: one whose writer has not returned must have all of them.
        """
        try:
            expected = self.state_names if file.mtime_ns is None else frozenset()
            whole = measured(file, prove_step=True, expected=expected, digest=file.digest)
            if whole is not None and self._durable:
                make_durable(file.path)
        except FileNotFoundError:
            return None
        if whole is not None and whole.state is FileState.DAMAGED:
            log.error("%s is empty or cut: it is registered as damaged, and no start takes it", whole.path)
        return whole


class Termination:
    """Calls `finish` at a SIGTERM that would end the process at once, then lets it end as it would have.

    A handler that is set already stays. Python runs handlers between two steps only. With data sinks a step is an
    epoch, and the process would live on too long: there the signal is left alone.
    """

    def __init__(self, finish: Callable[[], object]) -> None:
        self._finish = finish
        self._process = os.getpid()

    def arm(self, *, data_sink: bool) -> None:
        """Handle the signal from now on."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not data_sink and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)

    def disarm(self) -> None:
        """Training is over: handle the signal as before."""
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, *_: Any) -> None:
        if os.getpid() == self._process:
            self._finish()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
