"""Draws the decision of a start, from a real catalog, as an SVG on stdout: python examples/picture.py > start.svg.

In a job of 32 ranks, ranks R and R + 16 are replicas. Some files were never saved, one was cut, two were deleted. The
drawing shows the decision that `ckptstore resolve llama --explain` prints for this job.
"""

from __future__ import annotations

import os
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import ckptstore
from ckptstore.core.picture import MEANINGS, signs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptstore import Rejection, RestorePlan

RANKS, BYTES, LAUNCH = 32, 100_000, "20261121T034217-0d35d4"
STEPS = NEWEST, BETWEEN, OLDEST = 4000, 3500, 3000
REPLICAS = ";".join(f"{rank},{rank + RANKS // 2}" for rank in range(RANKS // 2))
LATE = {*range(12, 16), *range(28, 32)}  # two nodes lost power before these ranks had saved
COLOURS = {"#": "#2da44e", "+": "#218bff", "?": "#d0d7de", "x": "#cf222e", "-": "#fb8f44"}
CELL, LEFT, TOP, LINE = 16, 100, 40, 44


def saved(home: Path) -> ckptstore.Resolution:
    """Save three states, damage and delete some files, and resolve the run."""
    catalog = ckptstore.connect(str(home / "catalog.db"))
    launches = [catalog.join("llama", rank=rank, world_size=RANKS, launch_id=LAUNCH) for rank in range(RANKS)]
    for launch in launches:
        launch.resolve()
    for step in reversed(STEPS):
        for rank, launch in enumerate(launches):
            if step == NEWEST and rank in LATE:
                continue
            path = home / f"rank_{rank}" / f"llama-1_{step}.safetensors"
            path.parent.mkdir(exist_ok=True)
            path.touch()
            os.truncate(path, BYTES)
            launch.register(path, global_step=step)
    os.truncate(home / "rank_5" / f"llama-1_{BETWEEN}.safetensors", BYTES // 2)
    for rank, step in ((21, BETWEEN), (9, OLDEST)):
        (home / f"rank_{rank}" / f"llama-1_{step}.safetensors").unlink()
    return catalog.resolve("llama", replicas=REPLICAS)


def drawing(resolution: ckptstore.Resolution) -> Iterator[str]:
    """One row per state, newest first; one cell per rank."""
    states = [*resolution.rejections, *filter(None, [resolution.plan])]
    width, height = LEFT + RANKS * CELL + 240, TOP + LINE * len(states) + 40
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield _text(LEFT, 24, "a cell is a rank of 32; ranks R and R + 16 are replicas of each other", "#57606a")
    used = ""
    for row, state in enumerate(states):
        y = TOP + row * LINE
        signs = signs_of(state, RANKS)
        used += signs
        yield _text(14, y + 16, f"step {state.global_step}")
        yield from (
            f'<rect x="{LEFT + rank * CELL}" y="{y + 2}" width="{CELL - 2}" height="20" fill="{COLOURS[sign]}"/>'
            for rank, sign in enumerate(signs)
        )
        yield from _verdict(state, signs, y)
    x = LEFT
    for sign in (each for each in MEANINGS if each in used):
        yield f'<rect x="{x}" y="{height - 30}" width="12" height="12" fill="{COLOURS[sign]}"/>'
        yield _text(x + 18, height - 19, MEANINGS[sign], "#57606a")
        x += 40 + 8 * len(MEANINGS[sign])
    yield "</svg>"


def _verdict(state: Rejection | RestorePlan, signs: str, y: int) -> Iterator[str]:
    x = LEFT + RANKS * CELL + 10
    if isinstance(state, ckptstore.Rejection):
        told = ", ".join(
            f"{MEANINGS[sign]}: {signs.count(sign)}" for sign in MEANINGS if sign in signs and sign not in "#+"
        )
        yield _text(x, y + 10, "passed over", "#cf222e")
        yield _text(x, y + 26, told, "#57606a", 12)
    else:
        yield _text(x, y + 16, "every rank loads this", "#1a7f37")
        yield f'<rect x="6" y="{y - 5}" width="{x + 220}" height="34" rx="6" fill="none" stroke="#2da44e"/>'


def _text(x: int, y: int, text: str, colour: str = "#24292f", size: int = 14) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}">{escape(text)}</text>'


def main() -> None:
    """Print the drawing."""
    with tempfile.TemporaryDirectory() as home:
        sys.stdout.write("\n".join(drawing(saved(Path(home)))) + "\n")


if __name__ == "__main__":
    main()
