"""Runs a few simulated histories with the other tests; `make simulate` runs any number of them."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.world.history import draw, run
from tests.world.machine import simulated
from tests.world.world import World

HERE = Path(__file__).parents[2]
HISTORIES = 60


def test_a_handful_of_histories_keeps_every_promise() -> None:
    """Run histories in two processes, from a fixed seed. Each history that breaks a promise is printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.world", "--histories", str(HISTORIES), "--seed", "0", "--processes", "2"],
        cwd=HERE,
        env=os.environ | {"PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{HISTORIES} passed, 0 failed" in done.stdout


@pytest.mark.parametrize("seed", [3, 11])
def test_the_same_seed_is_the_same_history(seed: int) -> None:
    """Compare every call to the outside, in order, and every byte on the disks."""
    assert trace_of(seed) == trace_of(seed)


def trace_of(seed: int) -> str:
    traced = hashlib.sha256()
    outcome = run(draw(seed, 25), traced=lambda line: traced.update(line.encode()))
    assert outcome.error is None
    traced.update(repr(sorted(outcome.left.items())).encode())
    return traced.hexdigest()


def test_the_script_of_a_history_checks_what_the_history_checks() -> None:
    history = draw(5, 6)
    script: dict[str, Any] = {}
    exec(str(history), script)  # noqa: S102 — it is made here
    with simulated(history.seed) as machine:
        world = World(machine, **{name: value for name, value in history.settings.items() if name != "tier"})
        script["happens"](world)
    assert world.checked == run(history).checked
