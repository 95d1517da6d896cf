"""Make many small values without Python looking for cycles among them, which costs more time the more there are."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def without_cycle_search() -> Iterator[None]:
    """Turn Python's cyclic garbage collector off, for work whose many values hold no cycles.

    It would begin again and again, and look at all that the process has. What is not needed any more is freed as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
