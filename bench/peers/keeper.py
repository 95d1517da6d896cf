"""What every peer's program does: keep the saves of one run in one directory, and report as JSON, line by line.

    python -m bench.peers.NAME DIRECTORY [--synced]

A line asks: {"do": "save", "steps": [1, 2]}; the answer has the seconds. Each request opens what it needs, as a process
does after a restart; only `save` has it opened before the clock runs. Standard library only: these programs run in the
environment of their peer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class Keeper(ABC):
    """One way to keep saves. `synced`: a file is on the disk before it is recorded."""

    def __init__(self, home: Path, *, synced: bool) -> None:
        self.home = home
        self.synced = synced

    @abstractmethod
    def fill(self, count: int) -> None:
        """Be as after `count` saves, of the steps from 1; not timed, and in any way that leaves the same behind."""

    @abstractmethod
    def save(self, steps: Sequence[int]) -> float:
        """Write and record these saves, one after the other; the seconds, without opening."""

    @abstractmethod
    def steps(self) -> list[int]:
        """The steps of all saves."""

    @abstractmethod
    def newest(self) -> int:
        """The step that a restart would go on from."""

    @abstractmethod
    def prune(self, keep: int) -> None:
        """Delete all but the newest saves, their files too."""


def serve(make: Callable[..., Keeper]) -> None:
    """Answer requests until there are no more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("--synced", action="store_true")
    asked = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    keeper = make(asked.home, synced=asked.synced)
    for line in sys.stdin:
        print(json.dumps(_answer(keeper, json.loads(line))), file=answers, flush=True)


def _answer(keeper: Keeper, request: dict[str, Any]) -> dict[str, Any]:
    match request:
        case {"do": "fill", "count": count}:
            keeper.fill(count)
            return {}
        case {"do": "save", "steps": steps}:
            return {"seconds": keeper.save(steps)}
        case {"do": "steps"}:
            begin = time.perf_counter()
            steps = keeper.steps()
            return {"seconds": time.perf_counter() - begin, "steps": sorted(steps)}
        case {"do": "newest"}:
            begin = time.perf_counter()
            step = keeper.newest()
            return {"seconds": time.perf_counter() - begin, "step": step}
        case {"do": "prune", "keep": keep}:
            begin = time.perf_counter()
            keeper.prune(keep)
            return {"seconds": time.perf_counter() - begin}
    raise ValueError(request)
