"""Finishes records before the process ends at a SIGTERM that no other code handles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptstore.outside import os, signal, threading

if TYPE_CHECKING:
    from collections.abc import Callable


class Termination:
    """Calls `finish` at a SIGTERM that would end the process at once, then lets it end as it would have.

    A handler that is set already stays. Python runs handlers between two steps only. With data sinks a step is an
    epoch, and the process would live on too long: there the signal is left alone.
    """

    def __init__(self, finish: Callable[[], object]) -> None:
        self._finish = finish
        self._process = os.getpid()
        self._is_armed = False

    def arm(self, *, data_sink: bool) -> None:
        """Handle the signal from now on."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not data_sink and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
            self._is_armed = True

    def disarm(self) -> None:
        """Training is over: the signal is what it was."""
        if self._is_armed and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._is_armed = False

    def _handle(self, *_: Any) -> None:
        if os.getpid() == self._process:
            self._finish()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
