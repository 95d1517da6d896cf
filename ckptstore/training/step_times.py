"""What a save costs where somebody else makes it: how much longer a step took in which there was one."""

from __future__ import annotations

from collections import deque
from statistics import median

from ckptstore.core.model import Timing

_SEEN = 16
"""How many of the last steps without a save it is compared with, and how many of them there must be."""
_FEWEST = 3


class StepTimes:
    """Of one training. Moments are seconds of the monotonic clock, taken by the last callback in the list.

    A step begins when all callbacks have handled its begin, and ends when all have handled its end. So reading the
    dataset before it, and evaluations between epochs, are in the time from end to end only. With data sinking, the
    steps of one sink count as one.
    """

    def __init__(self) -> None:
        self._within: deque[float] = deque(maxlen=_SEEN)
        self._a_step: deque[float] = deque(maxlen=_SEEN)
        self._began: float | None = None
        self._ended: tuple[float, int] | None = None
        self._last: tuple[float, float] | None = None

    def begins(self, now: float) -> None:
        """A step begins."""
        self._began = now

    def ends(self, now: float, step: int) -> None:
        """It has ended, and so many steps are done. The first one, in which it was compiled, tells nothing."""
        if self._began is not None and self._ended is not None and step > self._ended[1]:
            self._last = now - self._began, (now - self._ended[0]) / (step - self._ended[1])
        self._began, self._ended = None, (now, step)

    def of_save(self) -> Timing | None:
        """What the save in the step that has just ended took; None where nothing can be said of it."""
        if self._last is None or len(self._within) < _FEWEST:
            return None
        return Timing(max(0.0, self._last[0] - median(self._within)), step=median(self._a_step))

    def done(self, *, saved: bool) -> None:
        """All was seen that was saved in that step: one without a save is one to compare with."""
        if self._last is not None and not saved:
            self._within.append(self._last[0])
            self._a_step.append(self._last[1])
        self._last = None
