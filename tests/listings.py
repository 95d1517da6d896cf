"""Counts how often directories are listed."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def listings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each directory is listed inside."""
    counts: Counter[str] = Counter()

    def counted(listed: Any) -> Any:
        def noted(path: Any = ".") -> Any:
            counts[str(Path(f"/proc/self/fd/{path}").readlink()) if isinstance(path, int) else os.fspath(path)] += 1
            return listed(path)

        return noted

    with monkeypatch.context() as patched:
        for name in ("listdir", "scandir"):
            patched.setattr(os, name, counted(getattr(os, name)))
        yield counts
