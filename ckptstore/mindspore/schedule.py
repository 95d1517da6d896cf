"""Decides when a training saves and when it leaves: its ranks decide together after a step."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from ckptstore.core import limits
from ckptstore.disk.exit_flags import KEY
from ckptstore.errors import UsageError
from ckptstore.mindspore import communication
from ckptstore.outside import Path, os, signal, threading, time
from ckptstore.training.exit_request import StaleFlag
from ckptstore.training.rhythm import Question, Rhythm

if TYPE_CHECKING:
    from ckptstore.core.interval import Cost
    from ckptstore.training.rank_launch import RankLaunch
    from ckptstore.training.rhythm import Every

log = logging.getLogger("ckptstore")

LEFT = 75
"""The exit code of a process that saved and left on request, and is to be started again (EX_TEMPFAIL)."""


class Schedule:
    """Decides after each step of a rank whether to save, and whether to leave.

    `mtbf` is the mean time between failures in seconds, for `every="auto"` on rank 0.

    `flag`, SIGTERM and `ckptstore exit` ask for an exit.
    """

    has_ignored: ClassVar[bool] = False
    """Whether a training of this process left, and SIGTERM is ignored since. A script may go on, as in a notebook."""

    def __init__(
        self, launch: RankLaunch, every: Every, *, step: int, mtbf: float | None, flag: ExitFlag | None
    ) -> None:
        self._launch, self._mtbf = launch, mtbf
        self._rhythm = Rhythm(every, step=step, now=time.monotonic(), rank=launch.rank, alone=launch.world_size == 1)
        self._flag = flag
        self._has_ended = self._has_left = False
        self._process = os.getpid()

    def begin(self) -> None:
        """Training begins: heed requests to leave."""
        self._launch.exit_request.is_heeded()
        self._has_ended = False
        was = signal.getsignal(signal.SIGTERM)
        if was is signal.SIG_DFL or (was is signal.SIG_IGN and Schedule.has_ignored):
            _handle_sigterm(self._terminate)

    def after(self, step: int, cost: Cost | None) -> tuple[bool, bool]:
        """Whether to save after this step, and whether to leave then. All ranks must call it after the same steps.

        `cost` is that of the last saves, if any.
        """
        is_due = self._rhythm.is_due(step)
        if not self._rhythm.asks(step):
            return is_due, False
        if self._mtbf is not None and cost is not None:
            self._rhythm.adapt(cost, self._mtbf)
        now = time.monotonic()
        asked = bool(self._launch.exit_request.path()) or (self._flag is not None and self._flag.asks())
        said = self._rhythm.question(step, now, leaves=self._launch.exit_request.got_sigterm or asked)
        said = Question(*communication.added_up(said))
        self._rhythm.heard(step, time.monotonic(), said)
        return is_due or bool(said.saves), bool(said.leaves)

    def saved(self) -> None:
        """A save was begun."""
        self._rhythm.saved(time.monotonic())

    def leave(self, step: int, *, is_saved: bool) -> SystemExit:
        """Wait for the other ranks, once training has ended; returns what to raise then.

        `is_saved`: the state after this step is on the disk.
        """
        self._has_left, self._launch.exit_request.got_sigterm = True, False
        if self._flag is not None:
            self._flag.answer()
        if signal.getsignal(signal.SIGTERM) == self._terminate:
            _handle_sigterm(signal.SIG_IGN)  # it comes after the preStop hook saw the save
            Schedule.has_ignored = True
        try:
            communication.added_up([0])  # msrun kills the ranks that still save once one has ended with 75
        except RuntimeError as error:  # a rank has died; this one has saved
            log.warning("not all ranks have come to leave: %s", error)
        if is_saved:
            log.info("run %s: step %d is saved; training ends on request (exit code %d)", self._launch.name, step, LEFT)
        else:
            log.error(
                "run %s: step %d could not be saved; training ends on request all the same (exit code %d), and the "
                "next start goes on after the last state that is complete",
                self._launch.name,
                step,
                LEFT,
            )
        return SystemExit(LEFT)

    def end(self) -> None:
        """Training is over: handle SIGTERM as before."""
        self._has_ended = True
        if signal.getsignal(signal.SIGTERM) == self._terminate:
            _handle_sigterm(signal.SIG_DFL)

    def obey(self) -> None:
        """End the process if it got SIGTERM, and training ended by itself before it could leave. All is saved.

        Of several ranks others may still save: msrun kills them once one has ended by a signal.
        """
        if self._launch.exit_request.got_sigterm and not self._has_left and self._launch.world_size == 1:
            os.kill(os.getpid(), signal.SIGTERM)  # the first one has set back what the signal does

    def _terminate(self, *_: object) -> None:
        """At SIGTERM leave when this step is done. A second one ends the process at once; in a child the first does."""
        if self._has_left:
            return
        self._launch.exit_request.got_sigterm = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._has_ended or os.getpid() != self._process:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        what = "saving after this step, then training ends; a second signal ends it at once"
        told = f"ckptstore: run {self._launch.name}: {what}\n"
        with suppress(OSError):
            os.write(2, told.encode())  # not by logging: this is a signal handler


def _handle_sigterm(handler: Any) -> None:
    """Set the handler, if this is the main thread: Python allows it in no other.

    In another thread `Schedule._terminate` stays, and checks by itself whether training has ended.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def check_every(every: object, hint: str = 'give a number of steps, a datetime.timedelta, or "auto"') -> None:
    """Raise `UsageError` unless it is a number of steps, a time or "auto"."""
    if every == "auto" or (isinstance(every, timedelta) and every > timedelta()):
        return
    try:
        limits.whole(every, lowest=1)
    except ValueError:
        raise UsageError(f"every is {every!r}", hint) from None


class ExitFlag:
    """A JSON file that asks for an exit, as MindSpore's OnRequestExit reads it: `{"GracefulExit": 1}`.

    A request from before the launch's first training does not count. One between two trainings does.
    """

    def __init__(self, path: str, *, puts_back: bool) -> None:
        self._path = path
        self._stale: StaleFlag | None = None
        if self._is_set():
            self._stale = StaleFlag(path, KEY)
            if puts_back:
                self._stale.put_back()

    def asks(self) -> bool:
        """Whether an exit was asked for since training began."""
        if self._stale is not None and not self._stale.was_written():
            return False
        self._stale = None
        return self._is_set()

    def answer(self) -> None:
        """The request is answered: a later training of this process leaves once the file is written again."""
        self._stale = StaleFlag(self._path, KEY)

    def _is_set(self) -> bool:
        try:
            told = json.loads(Path(self._path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(told, dict) and told.get(KEY) == 1
