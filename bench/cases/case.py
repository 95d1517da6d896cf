"""Cases in which it shows what a restart gets: one small program for each contender.

    python -m bench.cases.NAME [CASE]

Each makes its saves with the contender's own calls, does the harm, and asks as its documentation says. "right": the
state that a careful person would have taken, or exactly the saves that should be left. "wrong": another one, or what is
not to be trusted, without a word. "refuses": an error, or no such thing; somebody has to look.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

RIGHT, WRONG, REFUSES = "right", "wrong", "refuses"
NEWEST_CUT = "the newest save is cut"
KILLED = "killed between mark and delete"
RESTARTS = "five restarts, then retention"
RANK_MISSING = "a rank is missing"
NAME_LIES = "a name lies about its step"
CASES = (NEWEST_CUT, KILLED, RESTARTS, RANK_MISSING, NAME_LIES)
SAVES = 3
KEEP = 3
LAUNCHES = 5


class Judged(NamedTuple):
    """What came of a case, and in which words."""

    verdict: str
    detail: str


def went_on(step: int, expected: int, detail: str) -> Judged:
    """A restart that goes on from a step."""
    return Judged(RIGHT if step == expected else WRONG, f"goes on from step {step}; {detail}")


def left(steps: list[int], expected: list[int], orphans: list[str], detail: str) -> Judged:
    """What is known after deleting, and what lies about that nobody knows."""
    good = steps == expected and not orphans
    known = f"knows of steps {', '.join(map(str, steps))}"
    known += f"; left for ever: {', '.join(orphans)}" if orphans else ""
    return Judged(RIGHT if good else WRONG, f"{known}; {detail}")


def refused(error: BaseException, detail: str) -> Judged:
    """An error instead of a state."""
    said = (str(error).splitlines() or [""])[0][:80]
    return Judged(REFUSES, f"{type(error).__name__}: {said}; {detail}")


def cut(path: Path) -> None:
    """Half of the file is gone, as after a power failure."""
    os.truncate(path, path.stat().st_size // 2)


def die(*_: object, **__: object) -> None:
    """Be killed here."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed(action: Callable[[Path], object], home: Path) -> None:
    """Do this in a process of its own, which must be killed by it."""
    module = sys.modules[action.__module__].__spec__
    assert module is not None
    program = f"from pathlib import Path; from {module.name} import {action.__name__} as act; act(Path({str(home)!r}))"
    done = subprocess.run([sys.executable, "-c", program], check=False, stdout=2)
    assert done.returncode == -signal.SIGKILL, done.returncode


def main(cases: Mapping[str, Callable[[Path], Judged]]) -> None:
    """Run one case, or all; what came of them as JSON, one a line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    for case in sys.argv[1:] or cases:
        with tempfile.TemporaryDirectory() as home:
            judged = cases[case](Path(home))
        detail = judged.detail.replace(home, "")
        print(json.dumps({"case": case, "verdict": judged.verdict, "detail": detail}), file=answers, flush=True)
