"""How long to wait before trying again."""

from __future__ import annotations

from ckptstore.outside import CHANCE

_FIRST_SECONDS = 0.02


class Backoff:
    """Pauses that get twice as long each time, up to `longest` seconds.

    Each is multiplied by a random factor from 0.5 to 1: a thousand ranks that failed together must not try again
    together.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._next = _FIRST_SECONDS

    def pause(self) -> float:
        """The next pause, in seconds."""
        pause = self._next
        self._next = min(2 * pause, self._longest)
        return pause * CHANCE.uniform(0.5, 1)

    def reset(self) -> None:
        """Make the next pause short again. Call it after a success."""
        self._next = _FIRST_SECONDS
