"""What many small values cost."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def without_gc() -> Iterator[None]:
    """Make many values that hold no cycles, without Python's search for cycles among all that the process has.

    That search begins again and again while values are made, and takes longer than to make them. What is not needed any
    more is freed as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
