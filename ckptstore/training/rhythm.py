"""When a loop saves, and when its ranks ask each other whether it is time to save, or to leave."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from ckptstore.core.interval import best_interval

if TYPE_CHECKING:
    from ckptstore.core.interval import Cost

    Every = int | timedelta | Literal["auto"]

SHORTEST = timedelta(minutes=1)
"""With "auto": the time to the first save, by which the cost is measured, and the shortest time between two saves."""

_ASK_SECONDS = 1.0
"""The approximate time between two questions: each waits for the devices of all ranks."""
_MOST_STEPS = 1000
_GROWTH = 4


class Question(NamedTuple):
    """The answer of one rank when all ask each other; those of all are added up. Rank 0 alone looks at its clock."""

    leaves: int
    saves: int
    steps: int


class Rhythm:
    """When one rank saves. `every` is a number of steps, or a time between two saves; `alone`: there is one rank.

    With "auto" that time is a minute at first; then `adapt` computes it from the cost of a save. Moments are seconds of
    the monotonic clock.
    """

    def __init__(self, every: Every, *, step: int, now: float, rank: int, alone: bool) -> None:
        self.every = SHORTEST if every == "auto" else every
        self._rank, self._alone = rank, alone
        self._saved_at = self._asked_at = now
        self._step = self._asked_step = step
        self._steps = 1

    def asks(self, step: int) -> bool:
        """Whether the ranks ask each other after this step."""
        return step >= self._asked_step + self._steps

    def question(self, step: int, now: float, *, leaves: bool) -> Question:
        """The answer of this rank."""
        if self._rank:
            return Question(int(leaves), 0, 0)
        is_late = isinstance(self.every, timedelta) and now - self._saved_at >= self.every.total_seconds()
        seconds = max(now - self._asked_at, 1e-9) / max(step - self._asked_step, 1)
        steps = min(math.ceil(_ASK_SECONDS / seconds), _MOST_STEPS, _GROWTH * self._steps)
        return Question(int(leaves), int(is_late), 1 if self._alone else steps)

    def heard(self, step: int, now: float, said: Question) -> None:
        """Note the sum of all answers: the next question comes after its number of steps."""
        self._asked_step, self._asked_at, self._steps = step, now, max(1, said.steps)

    def adapt(self, cost: Cost, mtbf: float) -> None:
        """Choose the interval that loses least, by the cost of a save and the mean seconds between failures."""
        self.every = max(SHORTEST, timedelta(seconds=best_interval(cost, mtbf)))

    def is_due(self, step: int) -> bool:
        """Whether a save is due after a step, by the number of steps. With data sinking several steps end at once."""
        before, self._step = self._step, step
        return not isinstance(self.every, timedelta) and step // self.every > before // self.every

    def saved(self, now: float) -> None:
        """A save was begun."""
        self._saved_at = now
