"""`ckptstore diff` as docs/how-to/compare.md shows it, and what it prints of many parameters."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.shell_completion import ShellComplete

from ckptstore.api import connect
from ckptstore.cli.main import cli
from tests.cli.advice import run
from tests.command_line import COMMAND, HEAVY, loaded
from tests.tensors.states import saved, written

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "compare.md"


def trained(step: int) -> dict[str, Any]:
    """A network at step 1000, and at 1200 with another head."""
    later = step > 1000
    values: dict[str, Any] = {
        "conv.weight": np.linspace(-1, 1, 8 * 3 * 3 * 3, dtype=np.float32).reshape(8, 3, 3, 3) * (1.01 if later else 1),
        "conv.bias": np.ones(8, np.float32),
        "fc.weight": np.ones((12 if later else 10, 8), np.float32),
        "fc.bias": np.ones(10, np.float32) * (0.9 if later else 1),
        "global_step": np.array([step], np.int32),
    }
    return values if later else values | {"moments.fc.bias": np.zeros(10, np.float32)}


def columns(text: str) -> list[str]:
    return [re.sub(r"(?<=\S)  +", "  ", line.strip()) for line in text.strip().splitlines()]


def test_the_listing_in_the_docs(sqlite_url: str, tmp_path: Path) -> None:
    for step, accuracy in ((1000, 0.9), (1200, 0.93)):
        values = trained(step)
        saved(connect(sqlite_url), tmp_path, step, values, values, run="digits", metrics={"accuracy": accuracy})
    (listing,) = (block for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL) if "$" in block)
    command, shown = listing.removeprefix("$ ckptstore ").split("\n", 1)
    ended = run(sqlite_url, *command.split())
    assert (ended.code, ended.err) == (0, "")
    assert columns(ended.out) == columns(shown)


def test_it_imports_numpy_alone_and_for_files_reads_no_catalog(tmp_path: Path) -> None:
    first, second = (written(tmp_path / f"{step}.ckpt", trained(step)) for step in (1000, 1200))
    assert loaded(["--db", str(tmp_path / "none" / "c.db"), "diff", str(first), str(second)], *HEAVY) == {"numpy"}


def test_a_shell_completes_states_or_files(sqlite_url: str, tmp_path: Path) -> None:
    saved(connect(sqlite_url), tmp_path, 1000, trained(1000), run="digits")

    def completed(text: str) -> list[tuple[str, str]]:
        shell = ShellComplete(cli, {}, "ckptstore", "")
        return [(each.type, each.value) for each in shell.get_completions(["--db", sqlite_url, "diff", "digits"], text)]

    assert completed("dig") == [("plain", "digits")]
    assert ("plain", "digits@1000") in completed("digits@")
    assert completed("./net") == [("file", "./net")]


MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
"""By a small process: the memory of a child counts from the fork, and that of the tests is large."""


@pytest.mark.long
def test_the_memory_does_not_grow_with_a_tensor(tmp_path: Path) -> None:
    paths = []
    for step, form in ((1, "ckpt"), (2, "safetensors")):
        paths.append(str(written(tmp_path / f"a.{form}", {"w": np.full(100 << 20, step, np.float32)})))
    command = [sys.executable, "-c", MEASURE, COMMAND, "diff", *paths]
    used = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert used < 200e6


@pytest.mark.parametrize("there", [20, 21])
def test_the_largest_are_shown(sqlite_url: str, tmp_path: Path, there: int) -> None:
    one = {f"p.{place}": np.ones(3, np.float32) for place in range(there)}
    other = {name: values * (2 + place) for place, (name, values) in enumerate(one.items())}
    other["p.0"] = np.array([1, np.nan, -np.inf], np.float32)
    first = written(tmp_path / "a.ckpt", one | {f"gone.{place}": np.ones(1, np.int8) for place in range(there)})
    ended = run(sqlite_url, "diff", str(first), str(written(tmp_path / "b.ckpt", other)))
    lines = columns(ended.out)
    assert [line for line in lines if line.startswith("p.")][:2] == [
        "p.0  Float32  (3,)  0  0  0  0, 0 -> 1, 1",
        f"p.{there - 1}  Float32  (3,)  {there / (there + 1):.3g}  {3**0.5 * there:.3g}  {there}  -",
    ]
    more = [
        f"… and 1 more {what}; --json has all" for what in ("parameters that only one has", "parameters that changed")
    ]
    assert [line for line in lines if line.startswith("…")] == (more if there == 21 else [])
    assert len([line for line in lines if line.startswith(("p.", "gone."))]) == 40
